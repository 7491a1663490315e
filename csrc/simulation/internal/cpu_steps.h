// Steps of a network on the CPU: at most one parallel region per step, and no tensor is created in a step.
//
// A thread owns neurons, and the columns of their inputs. In a step it first adds the contributions of the last step's
// spikes to its columns, which it finds in every row because columns ascend; then it reads the sums for this step, adds
// current and drive, steps its neurons and lists those that fired. A spike is in flight for at least one step, so the
// only data that a thread reads from other threads is the list of spikes. A column's terms are added in the order of
// the rows: any number of threads gives the same bits.
//
// Spikes between areas or ranks are stored for as many steps as the shortest of their delays, sent to all ranks, and
// then delivered, by steps and by neurons of the whole network. If some stay within areas, they have their own ring,
// so that the order of sums does not depend on the distribution of areas.
#pragma once

#include "csrc/cpu/event/kernels.h"
#include "csrc/cpu/multistep/program.h"
#include "csrc/cpu/network/poisson_input.h"
#include "csrc/simulation/internal/call_guard.h"
#include "csrc/simulation/internal/engine.h"
#include "csrc/simulation/internal/group_call.h"
#include "csrc/simulation/internal/thread_choice.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace spikeforge::simulation {

struct SpikeList {
  std::vector<std::int64_t> steps, neurons;
};

// The recording of the steps of a call.
struct CpuRecord {
  SpikeList* spikes = nullptr;  // null: spikes are not recorded
  const RecordedStates& states;
  bool* fired = nullptr;  // [steps, neurons], false at first; or null
};

class CpuSteps final : public Engine {
 public:
  CpuSteps(NetworkState& state, CallGuard& guard);

  // Allocates the memory for torch's current number of threads.
  void prepare() override;

  // After an exception from recording, an unshared network is in the state of its last complete step.
  Spikes run(const Steps& steps, bool spikes, const RecordedStates& states) override;
  void step(const Steps& steps, const at::Tensor& fired) override;

  // Runs every step on all threads, even if one thread would be faster.
  void always_share() { choice_.always_share(); }

 private:
  // Neurons begin, ..., end - 1, whose cell runs step by step on the same memory.
  struct Cell : GroupCall {
    Cell(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs, const at::Tensor& output);

    // Runs one step of the neurons in [first, last).
    void run(std::int64_t first, std::int64_t last) const;

    std::int64_t begin = 0, end = 0;

    cpu::Program program;
    std::size_t scratch_bytes = 0;
  };

  // The neurons of a thread.
  struct Part {
    std::int64_t begin = 0, end = 0;
    std::vector<std::int64_t> fired;
    // The rows with connections to columns of the part.
    std::vector<std::int32_t> rows;
    std::vector<std::int64_t> begins, starts;
  };

  using Parts = std::vector<Part>;

  // Rows of the matrix, and the ring into which they send.
  struct Way {
    event::Rows matrix;
    event::Ring ring;
  };

  // Poisson input of neighbouring columns, the first of which is column `whole` of the whole network.
  struct PoissonRun {
    std::int64_t begin = 0, end = 0, whole = 0;
    std::optional<cpu::PoissonInput> of_all;  // if all have the same rate
  };
  struct PoissonDrive {
    std::uint64_t key = 0;
    std::vector<PoissonRun> runs;
    std::vector<double> rates, none, weights;  // [columns]
  };

  void run_steps(const Steps& steps, const CpuRecord& record);
  void arrive(std::int64_t step);
  void make_groups();
  void make_drives();
  std::vector<PoissonRun> runs_of(const PoissonDrive& drive);

  Parts divided(std::int64_t threads) const;
  void end(std::int64_t step);
  void run_step(Parts& parts);
  void set_step(std::int64_t step);
  template <class T> void run_part(Part& part);
  void deliver(Part& part) const;
  void deliver(Part& part, const std::vector<std::int64_t>& fired, const Way& way, std::int64_t step) const;
  void deliver_to(Part& part, const std::vector<std::int64_t>& fired, const Way& way, const event::Ring& ring,
                  std::int64_t first, std::int64_t last) const;
  void end_block();
  template <class T> void take(std::int64_t first, std::int64_t last) const;
  void drive(std::int64_t first, std::int64_t last) const;
  template <class T> void list_fired(Part& part) const;
  void record(std::int64_t row, std::int64_t step, const CpuRecord& record) const;

  NetworkState& state_;
  CallGuard& guard_;
  const cpu::EventKernels& kernels_;
  const cpu::PoissonKernels& poisson_;
  event::Weights weights_;
  Way within_, between_;
  const std::int64_t slots_;
  at::Tensor arriving_;  // [columns]
  std::deque<Cell> groups_;
  std::vector<PoissonDrive> drives_;
  std::map<double, std::vector<std::uint32_t>> thresholds_;  // by rates
  Parts shared_, alone_;                                     // the neurons divided among threads, and as one part
  std::int64_t threads_ = 0;
  ThreadChoice choice_;
  std::vector<std::int64_t> offsets_;  // of the slots by delay, listed twice so that any slot can be the first
  std::vector<std::int64_t> fired_;    // the spikes of the last step, not yet delivered
  // The own neurons that fired in each step of the block from first_of_block_ on; and the spikes of the last block,
  // which are not yet delivered.
  std::vector<std::vector<std::int64_t>> block_, told_;
  std::int64_t first_of_block_ = 0, first_told_ = 0;
  std::int64_t step_ = 0, first_step_ = 0;  // the second is the first of the call
  const ExternalInput* input_ = nullptr;    // of the call
};

}  // namespace spikeforge::simulation
