// Steps of a network on the CPU: one parallel region a step at most, and no tensor made in it.
//
// A thread owns neurons, and the columns of their inputs. In a step it first adds what the spikes of the step before
// send to its columns, which it finds in every row since columns ascend; then it takes what arrives now, adds current
// and drive, steps its neurons and lists those that fired. So nothing that a step of a thread reads is written by
// another but the list of spikes, for a spike is on its way for at least one step. What is added to a column is added
// in the order of the rows: any number of threads gives the same bits.
//
// Spikes between areas or ranks are kept for as many steps as the shortest of their delays takes, told to all ranks,
// and sent then, by steps and by neurons of the whole network. Where some stay within areas, they have a ring of their
// own, so that the order of sums does not depend on who has which area.
#pragma once

#include "csrc/cpu/event/kernels.h"
#include "csrc/cpu/multistep/program.h"
#include "csrc/cpu/network/poisson_input.h"
#include "csrc/simulation/internal/group_call.h"
#include "csrc/simulation/internal/running.h"
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

// What is recorded of the steps of a call.
struct CpuRecord {
  SpikeList* spikes = nullptr;  // null: they are not recorded
  const RecordedStates& states;
};

class CpuSteps {
 public:
  explicit CpuSteps(Running& running);

  // Allocates what steps need by as many threads as torch has now.
  void prepare();

  // An exception from recording leaves an unshared network after its last complete step.
  void run(std::int64_t steps, const CpuRecord& record);

  // Every step by all threads, whether or not that is faster.
  void always_share() { choice_.always_share(); }

 private:
  // Neurons begin, ..., end - 1, whose cell is run for one step after the other, on the same memory.
  struct Cell : GroupCall {
    Cell(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs, const at::Tensor& output);

    // Of those that are among [first, last).
    void run(std::int64_t first, std::int64_t last) const;

    std::int64_t begin = 0, end = 0;

    cpu::Program program;
    std::size_t scratch_bytes = 0;
  };

  // The neurons of a thread.
  struct Part {
    std::int64_t begin = 0, end = 0;
    std::vector<std::int64_t> fired;
    // Rows whose connections go to columns of the part.
    std::vector<std::int32_t> rows;
    std::vector<std::int64_t> begins, starts;
  };

  using Parts = std::vector<Part>;

  // Rows of the matrix, and the ring that what they send goes to.
  struct Way {
    event::Rows matrix;
    event::Ring ring;
  };

  // Poisson input of neighbouring columns, the first of which is column `whole` of the whole network.
  struct PoissonRun {
    std::int64_t begin = 0, end = 0, whole = 0;
    std::optional<cpu::PoissonInput> of_all;  // of one rate; none: each has its own
  };
  struct PoissonDrive {
    std::uint64_t key = 0;
    std::vector<PoissonRun> runs;
    std::vector<double> rates, none, weights;  // [columns]
  };

  void make_groups();
  void make_drives();
  std::vector<PoissonRun> runs_of(const PoissonDrive& drive);

  Parts divided(std::int64_t threads) const;
  void end(std::int64_t step);
  void run_step(Parts& parts);
  void set_step(std::int64_t step);
  template <class T>
  void run_part(Part& part);
  void deliver(Part& part) const;
  void deliver(Part& part, const std::vector<std::int64_t>& fired, const Way& way, std::int64_t step) const;
  void deliver_to(Part& part, const std::vector<std::int64_t>& fired, const Way& way, const event::Ring& ring,
                  std::int64_t first, std::int64_t last) const;
  void end_block();
  template <class T>
  void take(std::int64_t first, std::int64_t last) const;
  void drive(std::int64_t first, std::int64_t last) const;
  template <class T>
  void list_fired(Part& part) const;
  void record(std::int64_t row, std::int64_t step, const CpuRecord& record) const;

  Running& running_;
  const cpu::EventKernels& kernels_;
  const cpu::PoissonKernels& poisson_;
  event::Weights weights_;
  Way within_, between_;
  const std::int64_t slots_;
  at::Tensor arriving_;  // [columns]
  std::deque<Cell> groups_;
  std::vector<PoissonDrive> drives_;
  std::map<double, std::vector<std::uint32_t>> thresholds_;  // by rates
  Parts shared_, alone_;                                     // the neurons by threads, and all as one part
  std::int64_t threads_ = 0;
  ThreadChoice choice_;
  std::vector<std::int64_t> offsets_;  // of the slots, twice: where what takes so many steps arrives, from each on
  std::vector<std::int64_t> fired_;    // in the last step, not yet delivered
  // Of the steps of a block from first_of_block_ on: which own neurons fired; and what was told of the last block,
  // which is not yet delivered.
  std::vector<std::vector<std::int64_t>> block_, told_;
  std::int64_t first_of_block_ = 0, first_told_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace spikeforge::simulation
