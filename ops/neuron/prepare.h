// What every device does alike: checks, in the order of the arguments; allocation; the plain description that kernels
// take.
#pragma once

#include <spikeforge/ops/neuron/arguments.h>
#include <spikeforge/ops/neuron/layout.h>

#include <cstdint>
#include <vector>

namespace spikeforge::ops {

// The arguments checked, x with dense steps, the surrogate parsed: kernels have no checks. Int is c10::SymInt where a
// graph is traced.
template <class Int>
struct Preparation {
  at::Tensor x;
  Layout<Int> layout;
  Surrogate surrogate;
  c10::TensorOptions options;        // of x and the spikes
  c10::TensorOptions state_options;  // of states and checkpoints
  std::int64_t checkpoint_length = 1;
};

using Prepared = Preparation<std::int64_t>;

template <class Int = std::int64_t>
Preparation<Int> prepare(const NeuronArguments& args);

template <class Int>
ForwardResults allocate_forward(const NeuronArguments& args, const Preparation<Int>& prepared, bool save);

// Reads `results`' tensors and the arguments' memory; `copies` holds what could not be read in place.
ForwardLaunch forward_launch(const NeuronArguments& args, const Prepared& prepared, const ForwardResults& results,
                             Copies& copies);

template <class Int>
void check_backward(const BackwardArguments& args, const Preparation<Int>& prepared);

// One tensor for x, each state and each parameter; undefined where no gradient is wanted. A parameter's broadcasts from
// its own shape to [*shape], which is one value a neuron, in the compute type, until reduce_and_list has summed it.
struct BackwardResults {
  at::Tensor grad_x;
  std::array<at::Tensor, max_states> grad_states;
  std::array<at::Tensor, max_params> grad_params;
};
bool wants_grad_param(const BackwardArguments& args, int j);

// For x and the states.
template <class Int>
BackwardResults allocate_backward(const BackwardArguments& args, const Preparation<Int>& prepared);
// For the parameters, one value a neuron.
template <class Int>
void allocate_grad_params(const BackwardArguments& args, const Preparation<Int>& prepared, BackwardResults& results);

BackwardLaunch backward_launch(const BackwardArguments& args, const Prepared& prepared, const BackwardResults& results,
                               Copies& copies);

// Sums each parameter's gradient over the neurons that share it, and lists what was asked for in the order of the
// arguments. Deterministic: the kernels' partial sums over time are a neuron's own, and torch's sum has a fixed order.
std::vector<at::Tensor> reduce_and_list(const BackwardArguments& args, const BackwardResults& results);

}  // namespace spikeforge::ops
