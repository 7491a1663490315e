// One call of a recurrent layer as plain data: a multistep call whose cell receives its first output, through a matrix,
// some steps later. The comments on a multistep call (csrc/kernels/multistep/launch.h) also apply here.
//
// The N neurons of the call are `batch` samples of `width` each, contiguous [batch, width], and each step is
//
//   current[t, b, j] = rounded(x[t, b, j] + sum over i of s[t - delay, b, i] * w[i, j])
//   outputs[t], states = step(inputs[t] with the current in place of x[t], states)
//
// with x = inputs[into] and s the first output; before the first step s is `spikes`. The sum is in the type of the
// arithmetic, in any order that is the same at every call, and is rounded with x once, to the type of the call: the
// cell receives only the rounded current. A backward pass receives these rounded currents, from which it recomputes the
// states: those of the forward pass, bit by bit.
//
// Backward, with g[t] the gradient of the current, rounded to the type of the call,
//
//   gradient of s[t, b, i] = grad_outputs[0][t, b, i] + sum over j of g[t + delay, b, j] * w[i, j]
//
// in the type of the arithmetic. The caller computes the gradients of x, w and the spikes before the first step from g.
#pragma once

#include "csrc/kernels/multistep/launch.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace spikeforge {

struct Recurrence {
  std::int64_t batch = 0, width = 0;  // launch.neurons is their product
  std::size_t into = 0;               // the index of the input to which the sum is added
  std::int64_t delay = 1;             // steps, at least 1; it may exceed the number of steps
  const void* w = nullptr;            // [width, width], contiguous, of the call's type: w[i, j] from i to j
  void* scratch = nullptr;            // kernels::scratch_bytes() bytes
};

struct RecurrentForwardLaunch : ForwardLaunch {
  Recurrence recurrence;
  SequenceView spikes;      // [delay, N], of the call's type: row r is s[r - delay]; null: zeros
  void* current = nullptr;  // [T, N], of the call's type; null: neither it nor checkpoints are saved
};

// inputs[into] is the current, and grad_inputs[into] its gradient, which is never null.
struct RecurrentBackwardLaunch : BackwardLaunch {
  Recurrence recurrence;
};

namespace kernels {

// Returns the bytes of scratch memory that the kernel for such a call needs, on a GPU whose context is current, or
// std::nullopt if there is no kernel. Compiles nothing.
std::optional<std::int64_t> scratch_bytes(const RecurrentForwardLaunch& launch, const jit::Device& device);
std::optional<std::int64_t> scratch_bytes(const RecurrentBackwardLaunch& launch, const jit::Device& device);

// Launches the kernel of a call that has one, like launch_multistep().
void launch_recurrent(const RecurrentForwardLaunch& launch, const jit::Device& device, void* stream);
void launch_recurrent(const RecurrentBackwardLaunch& launch, const jit::Device& device, void* stream);

// Records the kernels of the calls while a pack is recorded.
void note(const RecurrentForwardLaunch& launch);
void note(const RecurrentBackwardLaunch& launch);

}  // namespace kernels
}  // namespace spikeforge
