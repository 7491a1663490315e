// A call of recurrent_run and of its lowered operators: a multistep call with a matrix. This is the device-independent
// part.
//
// The lowered operators have the call's inputs, states and parameters as one list, in the order of
// traced::arguments_of.
#pragma once

#include "csrc/kernels/recurrent/launch.h"
#include "ops/multistep/text_call.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

namespace spikeforge::ops::recurrent {

using traced::List;
using traced::OptionalTensorList;
using MaybeTensor = std::optional<at::Tensor>;
using traced::OptionalTensor;

inline constexpr const char* op = "recurrent_run";  // the prefix of messages

struct RecurrentCall : MultistepCall {
  at::Tensor w;
  at::Tensor spikes;  // undefined: zeros before the first step
  std::int64_t into = 0, delay = 1;

  const at::Tensor& x() const { return inputs[static_cast<std::size_t>(into)]; }
};

// The values for a backward pass: the currents, which replace x there, and the checkpoints.
struct RecurrentResults : MultistepResults {
  at::Tensor current;
};

// inputs[into] is the current, whose gradient is always computed.
struct RecurrentBackwardCall : BackwardCall {
  at::Tensor w;
  std::int64_t into = 0, delay = 1;
};

// Throws TypeError and ValueError. Kernels have no checks.
void check(const RecurrentCall& call);

// Check what all recurrent calls have in common. `name` is the prefix of messages.
void check_recurrent(const char* name, const MultistepCall& call, std::int64_t into);
void check_spikes(const char* name, const MultistepCall& call, const at::Tensor& spikes, std::int64_t delay);

// Like prepare() of a multistep call, but with the first input, and the layout, contiguous beyond time: a sample's
// neurons are neighbours.
template <class Int = std::int64_t> Preparation<Int> prepare_samples(const MultistepCall& call);

template <class Int> RecurrentResults allocate(const MultistepCall& call, const Preparation<Int>& prepared, bool save);

// Launches, and the data that they point to.
class DescribedForward {
 public:
  DescribedForward(const RecurrentCall& call, const Prepared& prepared, const RecurrentResults& results);
  RecurrentForwardLaunch launch;

 private:
  ops::DescribedForward step_;
  at::Tensor w_, spikes_;  // contiguous
};

class DescribedBackward {
 public:
  DescribedBackward(const RecurrentBackwardCall& call, const Prepared& prepared, const Gradients& gradients);
  RecurrentBackwardLaunch launch;

 private:
  ops::DescribedBackward step_;
  at::Tensor w_;
};

// Returns a mask of the shape of `start`: true if a sample does not receive the output of `delay` steps before, because
// it has restarted since.
at::Tensor is_unheard(const at::Tensor& start, std::int64_t delay);

// Returns rows_product of spikes and gradients, computed from the rows of neurons that fired. Returns std::nullopt if
// the dense product must be used: on a GPU, under a tracer, for values other than 0 and 1, or if many neurons fire.
std::optional<at::Tensor> fired_product(const at::Tensor& spikes, const at::Tensor& gradients);

// ---- the kernels of the lowered operators, on each device ----

RecurrentResults forward_cpu(const RecurrentCall& call, bool save);
RecurrentResults forward_cuda(const RecurrentCall& call, bool save);
RecurrentResults forward_meta(const RecurrentCall& call, bool save);
Tensors backward_cpu(const RecurrentBackwardCall& call);
Tensors backward_cuda(const RecurrentBackwardCall& call);
Tensors backward_meta(const RecurrentBackwardCall& call);

// Uses `run`, one step at a time, and torch's products, on any device and under every transform that supports them. Not
// optimised. `save` is only supported below autograd.
RecurrentResults forward_stepped(const RecurrentCall& call, bool save);
Tensors backward_stepped(const RecurrentBackwardCall& call);

// ---- calls through the dispatcher ----

// Argument types of the operators.
using Run = traced::Outputs(std::string_view, at::TensorList, const at::Tensor&, at::TensorList, at::TensorList,
                            const MaybeTensor&, std::int64_t, std::int64_t, bool, OptionalTensor, OptionalTensor);
using Forward = std::tuple<List, List, List>(std::string_view, at::TensorList, const at::Tensor&, const MaybeTensor&,
                                             std::int64_t, std::int64_t, bool, bool, OptionalTensor, OptionalTensor);
using Backward = List(std::string_view, const OptionalTensorList&, at::TensorList, const at::Tensor&, const at::Tensor&,
                      c10::List<bool>, std::int64_t, std::int64_t, bool, OptionalTensor, OptionalTensor);

RecurrentResults call_forward(const RecurrentCall& call, bool save);
Tensors call_backward(const RecurrentBackwardCall& call);

// Returns inputs, states and parameters as one list.
List arguments_of(const MultistepCall& call);
// The inverse; the call then points into the list. Throws ValueError if the number of arguments is not the neuron's.
void set_arguments(MultistepCall& call, at::TensorList arguments, OptionalTensor lengths, OptionalTensor start);

// Convert the results of the lowered forward operators: outputs, states and, with `save`, what is saved.
std::tuple<List, List, List> lowered(RecurrentResults&& results, bool save);
RecurrentResults raised(const std::tuple<List, List, List>& lowered);

// Returns the gradients of outputs and states as one list.
OptionalTensorList upstream_of(const BackwardCall& call);

// Returns a call of the neuron without tensors.
MultistepCall call_of(std::string_view neuron, bool store_states);

// Converts `run` to a kernel for the dispatcher.
template <RecurrentResults (*run)(const RecurrentCall&)>
traced::Outputs run_kernel(std::string_view neuron, at::TensorList inputs, const at::Tensor& w, at::TensorList states,
                           at::TensorList params, const MaybeTensor& spikes, std::int64_t into, std::int64_t delay,
                           bool store_states, OptionalTensor lengths, OptionalTensor start) {
  RecurrentCall call{traced_call(neuron, inputs, states, params, store_states), w, spikes.value_or(at::Tensor()), into,
                     delay};
  call.op = op;
  set_samples(call, lengths, start);
  check(call);
  return traced::outputs_of(run(call));
}

template <RecurrentResults (*forward)(const RecurrentCall&, bool save)>
std::tuple<List, List, List> forward_kernel(std::string_view neuron, at::TensorList arguments, const at::Tensor& w,
                                            const MaybeTensor& spikes, std::int64_t into, std::int64_t delay,
                                            bool store_states, bool save, OptionalTensor lengths,
                                            OptionalTensor start) {
  RecurrentCall call{call_of(neuron, store_states), w, spikes.value_or(at::Tensor()), into, delay};
  set_arguments(call, arguments, lengths, start);
  check(call);
  return lowered(forward(call, save), save);
}

void check(const RecurrentBackwardCall& call);

// Sets the upstream gradients and needs_grad of a backward call; `others` is the number of further entries of
// needs_grad. The call points to the gradients in `all`. Throws ValueError for wrong numbers of entries.
void set_gradients(BackwardCall& call, Tensors& all, std::int64_t into, const OptionalTensorList& grads,
                   const c10::List<bool>& needs_grad, std::size_t others = 0);

template <Tensors (*backward)(const RecurrentBackwardCall&)>
List backward_kernel(std::string_view neuron, const OptionalTensorList& grads, at::TensorList arguments,
                     const at::Tensor& w, const at::Tensor& checkpoints,
                     c10::List<bool> needs_grad,  // NOLINT(performance-unnecessary-value-param): for the dispatcher
                     std::int64_t into, std::int64_t delay, bool store_states, OptionalTensor lengths,
                     OptionalTensor start) {
  RecurrentBackwardCall call;
  static_cast<MultistepCall&>(call) = call_of(neuron, store_states);
  set_arguments(call, arguments, lengths, start);
  call.w = w;
  call.into = into;
  call.delay = delay;
  call.checkpoints = checkpoints;
  check(call);
  Tensors all;
  set_gradients(call, all, call.into, grads, needs_grad);
  return traced::list_of(backward(call));
}

}  // namespace spikeforge::ops::recurrent
