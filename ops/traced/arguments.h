// One call of the lowered operators run_forward and run_backward, and calls of them through the dispatcher.
#pragma once

#include <spikeforge/ops/neuron/arguments.h>
#include <spikeforge/runtime/traced_cell.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace spikeforge::ops {

using Tensors = std::vector<at::Tensor>;

struct TracedArguments {
  std::string_view neuron;  // its text
  at::TensorList inputs;
  at::TensorList states;  // none: the neuron's constants
  at::TensorList params;
  bool store_states = false;
};

struct TracedResults {
  Tensors outputs, states;
  Tensors checkpoints;  // one, or none where none are kept
};

struct TracedBackwardArguments : TracedArguments {
  OptionalTensorList grad_outputs, grad_states;
  at::TensorList checkpoints;
  c10::List<bool> needs_grad;  // over the inputs, the given states, the parameters
};

// The cell of a text. Throws ValueError, with line, column and caret where the text cannot be read; `caller` begins the
// message.
const TracedCell& cell_of(std::string_view text, const char* caller = "run");

// The CUDA source of the kernels of a typical call with inputs of this type.
std::string print_cuda(std::string_view neuron, c10::ScalarType dtype);

// Refuses other layouts in words; the dispatcher, which has no kernels for them, would not find any.
void check_strided(const TracedArguments& args);

namespace traced {

using Outputs = std::tuple<Tensors, Tensors>;
using Lowered = std::tuple<Tensors, Tensors, Tensors>;

using Run = Outputs(std::string_view, at::TensorList, at::TensorList, at::TensorList, bool);
using MaybeList = std::optional<at::TensorList>;
using Forward = Lowered(std::string_view, at::TensorList, MaybeList, MaybeList, bool, bool);
using Backward = Tensors(std::string_view, const OptionalTensorList&, const OptionalTensorList&, at::TensorList,
                         at::TensorList, at::TensorList, at::TensorList, c10::List<bool>, bool);

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Kernels for the dispatcher from functions of a call's arguments.
template <TracedResults (*forward)(const TracedArguments&, bool save)>
Lowered forward_kernel(std::string_view neuron, at::TensorList inputs, MaybeList states, MaybeList params,
                       bool store_states, bool save) {
  const at::TensorList none;
  TracedResults results = forward({neuron, inputs, states.value_or(none), params.value_or(none), store_states}, save);
  return {std::move(results.outputs), std::move(results.states), std::move(results.checkpoints)};
}

template <Tensors (*backward)(const TracedBackwardArguments&)>
Tensors backward_kernel(
    std::string_view neuron, const OptionalTensorList& grad_outputs, const OptionalTensorList& grad_states,
    at::TensorList inputs, at::TensorList states, at::TensorList params, at::TensorList checkpoints,
    c10::List<bool> needs_grad,  // NOLINT(performance-unnecessary-value-param): the dispatcher's signature
    bool store_states) {
  return backward({{neuron, inputs, states, params, store_states}, grad_outputs, grad_states, checkpoints, needs_grad});
}

}  // namespace traced

inline TracedResults call_forward(const TracedArguments& args, bool save) {
  static const auto op = traced::find<traced::Forward>("spikeforge::run_forward");
  auto [outputs, states, checkpoints] =
      op.call(args.neuron, args.inputs, args.states, args.params, args.store_states, save);
  return {std::move(outputs), std::move(states), std::move(checkpoints)};
}

inline Tensors call_backward(const TracedBackwardArguments& args) {
  static const auto op = traced::find<traced::Backward>("spikeforge::run_backward");
  return op.call(args.neuron, args.grad_outputs, args.grad_states, args.inputs, args.states, args.params,
                 args.checkpoints, args.needs_grad, args.store_states);
}

}  // namespace spikeforge::ops
