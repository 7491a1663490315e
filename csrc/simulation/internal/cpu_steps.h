// Steps of a network on the CPU, in blocks: one parallel region per block, in which no tensor is created.
//
// A block has as many steps as the shortest delay within areas and ranks, at most most_steps. A spike of the block
// arrives after the block, so the input of all its steps is complete before its first step, and a thread can run
// the steps without the others. Blocks have one step if a connection has a delay of one step, if states are recorded,
// or if connections learn.
//
// A thread owns neurons, and the columns of their inputs. In a block it first adds the contributions of the last
// block's spikes to its columns, which it finds in every row because columns ascend. Then it runs its neurons, in
// batches that fit in the cache: it reads the sums of all steps, adds current and drive, runs the loop of the cell over
// the steps, and lists the neurons that fired. The only data that a thread reads from other threads is the list of
// spikes. A column's terms are added in the order of steps and rows: any number of threads, and any blocks, give the
// same bits.
//
// A neuron rests if a step without arrivals does not change the bits of its states and it does not fire. It is skipped
// until a spike is delivered to it or a state is loaded: its next steps would be the same. Neurons with random input,
// which draw random numbers, or in networks that learn never rest. Marks of the columns to which a spike is delivered
// wake neurons, and save reading columns without arrivals. They take time, so if no neuron rests and many spikes
// arrive, they pause until the next trial.
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
#include <span>
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

  // After an exception from recording, an unshared network is in the state of its last complete block.
  Spikes run(const Steps& steps, bool spikes, const RecordedStates& states) override;
  void step(const Steps& steps, const at::Tensor& fired) override;

  // Runs every step on all threads, even if one thread would be faster.
  void always_share() { choice_.always_share(); }

 private:
  // Neurons begin, ..., end - 1. Its launch is one step of all of them, in the network's tensors.
  struct Cell : GroupCall {
    Cell(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs, const at::Tensor& output,
         std::int64_t shift);

    std::int64_t begin = 0, end = 0;
    std::int64_t shift = 0;  // the column of a neuron's first input, minus the index of the neuron

    cpu::Program program;
    std::size_t scratch_bytes = 0;
  };

  // Neighbouring neurons, and the position of the first one in its batch.
  struct Run {
    std::int64_t first = 0, count = 0, at = 0;
  };
  // Neurons of a cell that run the steps of a block together. The states of one run stay in the network's tensors;
  // those of several runs are gathered, and scattered after the block.
  struct Batch {
    std::vector<Run> runs;
    std::int64_t size = 0;

    void add(std::int64_t first, std::int64_t count);
  };

  // Neurons of a thread: all, or, if there are copies, about those of one, which fit better in its cache.
  struct Part {
    std::int64_t begin = 0, end = 0;
    std::vector<std::vector<std::int64_t>> fired;  // in each step of the block
    bool any_rests = false;
    std::int64_t delivered = 0;  // values, at the beginning of the block
    Batch batch;
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

  // An input of the neurons of a copy, the first of which is neuron `first`.
  struct Input {
    std::int64_t number = 0, first = 0;
  };

  // Poisson input of neighbouring columns of a copy, the first of which is column `whole` of the whole network.
  struct PoissonRun {
    std::int64_t begin = 0, end = 0, whole = 0;
    std::uint64_t key = 0;
    std::optional<cpu::PoissonInput> of_all;  // if all have the same rate
  };
  struct PoissonDrive {
    std::vector<std::uint64_t> keys;  // of the copies
    std::vector<PoissonRun> runs;
    std::vector<double> rates, none, weights;  // [columns]
  };

  void run_steps(const Steps& steps, const CpuRecord& record);
  void arrive();
  void wake();
  void mark_input();
  void make_groups();
  void make_drives();
  std::vector<PoissonRun> runs_of(const PoissonDrive& drive);

  void find_least_delay();
  void find_restless();

  Parts divided(std::int64_t threads) const;
  void end(std::int64_t step);
  std::int64_t steps_of_block(std::int64_t left, bool records_states) const;
  void run_block(Parts& parts);
  template <class T> void run_part(Part& part);
  void deliver(Part& part);
  void deliver(Part& part, const std::vector<std::int64_t>& fired, const Way& way, std::int64_t step);
  void deliver_to(Part& part, std::span<const std::int64_t> fired, const Way& way, const event::Ring& ring,
                  const Input& input, std::int64_t step);
  void mark(const Part& part, const event::Rows& matrix, const event::Ring& ring, const Input& input,
            std::int64_t step);
  std::uint64_t* arrivals(std::int64_t step, std::int64_t input);
  void wake_at_arrivals(const Part& part);
  void end_exchange_block();
  void expect_arrivals(const std::vector<std::vector<std::int64_t>>& fired, std::int64_t first);
  void mark_all_arrivals();
  template <class T> void run_cell(const Cell& cell, Part& part);
  template <class T> void run_batch(const Cell& cell, Part& part);
  static bool any_of(const std::uint64_t* bits, const Run& run);
  template <class T>
  SequenceView take(const Cell& cell, const Batch& batch, std::int64_t input, std::int64_t lanes, T* rows);
  template <class T> void take_arrivals(std::int64_t column, std::int64_t count, std::int64_t lanes, T* rows);
  template <class T>
  void take_marked(std::int64_t input, std::int64_t begin, std::int64_t end, std::int64_t shift, std::int64_t lanes,
                   T* rows);
  void drive(std::int64_t first, std::int64_t last, std::int64_t step, void* to) const;
  template <class T> void let_rest(const Batch& batch, const T* before, std::int64_t lanes, const ForwardLaunch& last);
  void begin_marks();
  void end_marks();
  void record(std::int64_t row, const CpuRecord& record) const;

  NetworkState& state_;
  CallGuard& guard_;
  const cpu::EventKernels& kernels_;
  const cpu::PoissonKernels& poisson_;
  event::Weights weights_;
  Way within_, between_;
  const std::int64_t slots_;
  std::deque<Cell> groups_;
  std::vector<PoissonDrive> drives_;
  std::map<double, std::vector<std::uint32_t>> thresholds_;  // by rates
  Parts shared_, alone_;                                     // the neurons divided among threads, and for one thread
  std::int64_t threads_ = 0;
  ThreadChoice choice_;
  std::vector<std::int64_t> offsets_;  // of the slots by delay, repeated so that any slot can be the first
  std::int64_t least_delay_ = 0;       // the steps of a block, if nothing needs fewer
  std::int64_t step_ = 0, steps_ = 0;  // the first step of the block, and their number
  std::int64_t first_step_ = 0;        // of the call
  const ExternalInput* input_ = nullptr;
  std::uint64_t version_ = 0;  // of the states in which awake_ was found

  // The spikes of the last block, which are not yet delivered, by steps from first_fired_ on.
  std::vector<std::vector<std::int64_t>> fired_;
  std::int64_t first_fired_ = 0;
  // The own neurons that fired in each step since the last exchange, from first_of_exchange_ on; and the spikes that
  // the last exchange received, which are not yet delivered.
  std::vector<std::vector<std::int64_t>> to_exchange_, told_;
  std::int64_t first_of_exchange_ = 0, first_told_ = 0;

  // A bit for each neuron, in words of neighbouring neurons.
  std::vector<std::uint64_t> awake_, restless_;  // stepped in this block; never at rest
  std::vector<std::uint64_t> driven_;            // [inputs, words]: columns with Poisson input
  std::vector<std::uint64_t> given_;             // [inputs, words]: columns with input of the caller, in this block
  std::vector<std::uint64_t> arrivals_;          // [slots, inputs, words]: columns at which spikes arrive
  std::vector<std::uint64_t> arriving_;          // [inputs, words]: the same, in any step of this block
  std::vector<std::uint64_t> arriving_last_;     // [words]: neurons at which spikes arrive in its last step
  std::int64_t last_arrival_ = 0;                // no spike arrives after this step
  bool any_arrives_ = true;                      // false: arriving_ and arriving_last_ are 0
  bool any_given_ = false;                       // false: given_ is 0
  bool can_rest_ = false;                        // false: all neurons are restless
  bool marks_ = false, tests_ = false;           // arrivals_ are valid; this block tests for rest
  bool needs_marks_ = false;                     // some neurons rest, or few spikes arrive
  std::int64_t end_of_trial_ = 0, next_trial_ = 0, next_test_ = 0;
};

}  // namespace spikeforge::simulation
