// One multistep call of a traced cell as plain data: what the operator hands to the CPU's interpreter or to a GPU
// kernel once every check is done. Lists have one entry for each input, state, parameter or output of the cell.
#pragma once

#include <spikeforge/runtime/launch.h>
#include <spikeforge/runtime/traced_cell.h>

#include <cstdint>
#include <span>

namespace spikeforge {

struct TracedLaunch {
  const TracedCell* cell = nullptr;  // interned
  DType type{};  // of inputs, outputs and their gradients; states and arithmetic are in compute_type(type)
  std::int64_t steps = 0;
  std::int64_t neurons = 0;
  std::int64_t checkpoint_length = 1;
  bool store_states = false;  // sequences of states, [T, N], rather than the last ones

  std::span<const SequenceView> inputs;  // [T, N]
  std::span<const StateView> initial;    // null: the cell's own constant
  std::span<const ParamView> params;
};

struct TracedForwardLaunch : TracedLaunch {
  std::span<void* const> outputs;  // [T, N]
  std::span<void* const> states;   // [N], or [T, N]
  void* checkpoints = nullptr;     // [(T - 1) / checkpoint_length, states, N]; null: not saved
};

// Gradients that autograd did not define, and results that nobody asked for, are null.
struct TracedBackwardLaunch : TracedLaunch {
  std::span<const SequenceView> grad_outputs;
  std::span<const SequenceView> grad_states;  // of the stored sequences, or of the last states
  const void* checkpoints = nullptr;
  std::span<void* const> grad_inputs;   // [T, N]
  std::span<void* const> grad_initial;  // [N], of the type of the initial state
  std::span<void* const> grad_params;   // [N]: one value a neuron, in the compute type
  // GPU: of a parameter that shared_by_warps (schedule.h), one value a warp instead.
  bool sums_of_warps = false;
};

}  // namespace spikeforge
