// A call of a text: the arguments of run, run_forward and run_backward as a MultistepCall, and calls of them through
// the dispatcher, for the family that registers them and for derivatives, which run texts.
#pragma once

#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/traced_cell.h"
#include "ops/common/library.h"
#include "ops/multistep/draws.h"
#include "ops/multistep/samples.h"

#include <ATen/core/List.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge::ops {

// Returns the cell of a text. Throws ValueError, with line, column and caret, if the text cannot be parsed, and
// c10::Error if the neurons in use exceed the memory limit; the messages start with `caller`.
std::shared_ptr<const TracedCell> cell_of(std::string_view text, const char* caller = "run");

// Throws ValueError for a wrong number of tensors; with `scan` also if the next states are not affine in the states, or
// if there are too many.
MultistepCall traced_call(std::shared_ptr<const TracedCell> cell, at::TensorList inputs, at::TensorList states,
                          at::TensorList params, bool store_states, std::int64_t bits = 0, bool scan = false);
inline MultistepCall traced_call(std::string_view neuron, at::TensorList inputs, at::TensorList states,
                                 at::TensorList params, bool store_states, std::int64_t bits = 0, bool scan = false) {
  return traced_call(cell_of(neuron), inputs, states, params, store_states, bits, scan);
}

// Throws NotImplementedError for a neuron that draws random numbers; `op` is the operator that does not support it.
void refuse_draws(const Cell& cell, const char* op);

namespace traced {

using List = std::vector<at::Tensor>;
using OptionalTensorList = c10::List<std::optional<at::Tensor>>;
using MaybeList = std::optional<at::TensorList>;
using OptionalTensor = const std::optional<at::Tensor>&;

using Outputs = std::tuple<List, List>;
using Run = Outputs(std::string_view, at::TensorList, at::TensorList, at::TensorList, bool, std::int64_t,
                    OptionalTensor, OptionalTensor, bool, OptionalTensor, OptionalTensor);
using Forward = std::tuple<List, List, List>(std::string_view, at::TensorList, bool, bool, std::int64_t, OptionalTensor,
                                             OptionalTensor, bool, OptionalTensor, OptionalTensor);
using Backward = List(std::string_view, const OptionalTensorList&, const OptionalTensorList&, at::TensorList,
                      at::TensorList, at::TensorList, at::TensorList, c10::List<bool>, bool, OptionalTensor,
                      OptionalTensor, OptionalTensor, OptionalTensor);

inline List list_of(const Tensors& tensors) { return {tensors.begin(), tensors.end()}; }
inline List list_of(Tensors&& tensors) {
  return {std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end())};
}
inline Tensors tensors_of(const List& list) { return {list.begin(), list.end()}; }
inline Outputs outputs_of(MultistepResults&& results) {
  return {list_of(std::move(results.outputs)), list_of(std::move(results.states))};
}

inline std::string_view text_of(const MultistepCall& call) { return static_cast<const TracedCell*>(call.cell)->text; }

// Returns the states of a call: all are given, or none.
inline at::TensorList given_states(const MultistepCall& call) {
  return !call.states.empty() && call.states[0].defined() ? call.states : at::TensorList();
}

// The lowered forward operators take inputs, states (all, or none) and parameters as one list, `arguments`: it is never
// empty, so it need not be optional, and the dispatcher reads the keys of all of its tensors.
List arguments_of(at::TensorList inputs, at::TensorList states, at::TensorList params);
struct Arguments {
  at::TensorList inputs, states, params;
};
// Splits the list. Throws ValueError for a wrong number of tensors.
Arguments split(const char* op, const Cell& cell, at::TensorList arguments);

// The text that a lowered call passes: on one line if it becomes part of a graph.
class LoweredText {
 public:
  explicit LoweredText(const MultistepCall& call) : LoweredText(text_of(call), call.inputs[0]) {}
  LoweredText(std::string_view text, const at::Tensor& x) : text_(text) {
    const bool is_recorded = x.key_set().has(c10::DispatchKey::Python);
    if (is_recorded && text_.find('\n') != std::string_view::npos) text_ = line_ = graph::on_a_line(text_);
  }
  LoweredText(const LoweredText&) = delete;
  LoweredText& operator=(const LoweredText&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string line_;
  std::string_view text_;
};

// The saved tensors of a forward operator, as one list: empty; checkpoints; or those, and the first output as bits.
inline List kept_of(const MultistepResults& results) {
  List kept;
  if (results.checkpoints.defined()) kept.push_back(results.checkpoints);
  if (results.packed.numbers.defined()) kept.insert(kept.end(), {results.packed.numbers, results.packed.valid});
  return kept;
}
inline MultistepResults results_of(const List& outputs, const List& states, const List& kept) {
  MultistepResults results{
      .outputs = tensors_of(outputs), .states = tensors_of(states), .checkpoints = {}, .packed = {}};
  if (!kept.empty()) results.checkpoints = kept[0];
  if (kept.size() > 1) results.packed = {kept[1], kept[2]};
  return results;
}

// Converts `run` to a kernel of the operator run for the dispatcher.
template <MultistepResults (*run)(const MultistepCall&)>
Outputs run_kernel(std::string_view neuron, at::TensorList inputs, at::TensorList states, at::TensorList params,
                   bool store_states, std::int64_t bits, OptionalTensor lengths, OptionalTensor start, bool scan,
                   OptionalTensor seed, OptionalTensor offset) {
  MultistepCall call = traced_call(neuron, inputs, states, params, store_states, bits, scan);
  set_samples(call, lengths, start);
  set_draws(call, seed, offset);
  check_dense(call);
  return outputs_of(run(call));
}

template <MultistepResults (*forward)(const MultistepCall&, bool save)>
std::tuple<List, List, List> forward_kernel(std::string_view neuron, at::TensorList arguments, bool store_states,
                                            bool save, std::int64_t bits, OptionalTensor lengths, OptionalTensor start,
                                            bool scan, OptionalTensor seed, OptionalTensor offset) {
  auto cell = cell_of(neuron, "run_forward");
  const auto [inputs, states, params] = split("run_forward", *cell, arguments);
  MultistepCall call = traced_call(std::move(cell), inputs, states, params, store_states, bits, scan);
  call.lengths = lengths.value_or(at::Tensor());
  call.start = start.value_or(at::Tensor());
  set_draws(call, seed, offset);
  const MultistepResults results = forward(call, save);
  return {list_of(results.outputs), list_of(results.states), kept_of(results)};
}

// True if a transform of torch.func wraps the tensor.
inline bool is_wrapped(const at::Tensor& t) {
  constexpr c10::DispatchKeySet wrappers{c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper};
  return t.key_set().has_any(wrappers);
}

// Throws ValueError unless the lists fit the neuron.
void check_counts(const MultistepCall& call, std::size_t grad_outputs, std::size_t grad_states, std::size_t checkpoints,
                  std::size_t needs_grad);

// The call of a lowered backward operator; needs_grad is over the inputs, the given states, the parameters.
class GivenBackward {
 public:
  GivenBackward(std::string_view neuron, const OptionalTensorList& grad_outputs, const OptionalTensorList& grad_states,
                at::TensorList inputs, at::TensorList states, at::TensorList params, at::TensorList checkpoints,
                const c10::List<bool>& needs_grad, bool store_states) {
    static_cast<MultistepCall&>(call) = traced_call(neuron, inputs, states, params, store_states);
    check_counts(call, grad_outputs.size(), grad_states.size(), checkpoints.size(), needs_grad.size());
    for (const OptionalTensorList* list : {&grad_outputs, &grad_states})
      for (const std::optional<at::Tensor> grad : *list) grads_.push_back(grad.value_or(at::Tensor()));
    call.grad_outputs = at::TensorList(grads_).slice(0, grad_outputs.size());
    call.grad_states = at::TensorList(grads_).slice(grad_outputs.size());
    call.checkpoints = checkpoints[0];
    std::size_t next = 0;
    const auto add = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) call.needs_grad.push_back(needs_grad.get(next++));
    };
    add(inputs.size());
    if (states.empty())
      call.needs_grad.append(call.cell->states.size(), false);
    else
      add(states.size());
    add(params.size());
  }
  GivenBackward(const GivenBackward&) = delete;
  GivenBackward& operator=(const GivenBackward&) = delete;

  BackwardCall call;

 private:
  Tensors grads_;
};

// Converts a list to a list of optional tensors.
inline OptionalTensorList optional_list(at::TensorList tensors) {
  OptionalTensorList list;
  list.reserve(tensors.size());
  for (const at::Tensor& t : tensors) list.push_back(maybe(t));
  return list;
}
inline c10::List<bool> needs_grad_of_given(const BackwardCall& call) {
  c10::List<bool> needs_grad;
  needs_grad.reserve(call.needs_grad.size());
  const bool has_states = !given_states(call).empty();
  for (std::size_t i = 0; i < call.needs_grad.size(); ++i) {
    const bool is_state = i >= call.inputs.size() && i < call.inputs.size() + call.cell->states.size();
    if (has_states || !is_state) needs_grad.push_back(call.needs_grad[i]);
  }
  return needs_grad;
}

template <Tensors (*backward)(const BackwardCall&)>
List backward_kernel(std::string_view neuron, const OptionalTensorList& grad_outputs,
                     const OptionalTensorList& grad_states, at::TensorList inputs, at::TensorList states,
                     at::TensorList params, at::TensorList checkpoints,
                     c10::List<bool> needs_grad,  // NOLINT(performance-unnecessary-value-param): for the dispatcher
                     bool store_states, OptionalTensor lengths, OptionalTensor start, OptionalTensor seed,
                     OptionalTensor offset) {
  GivenBackward given(neuron, grad_outputs, grad_states, inputs, states, params, checkpoints, needs_grad, store_states);
  given.call.lengths = lengths.value_or(at::Tensor());
  given.call.start = start.value_or(at::Tensor());
  set_draws(given.call, seed, offset);
  return list_of(backward(given.call));
}

}  // namespace traced

// Call the operators through the dispatcher. All states are given, or none.
inline MultistepResults call_run(const MultistepCall& call) {
  static const auto op = find_operator<traced::Run>("spikeforge::run");
  const auto [outputs, states] =
      op.call(traced::LoweredText(call).text(), call.inputs, traced::given_states(call), call.params, call.store_states,
              call.bits, maybe(call.lengths), maybe(call.start), call.scan, maybe(call.seed), maybe(call.offset));
  return traced::results_of(outputs, states, {});
}

// A call of run by a C++ function, which bypasses the dispatcher if nothing intercepts calls (traced/kernels.cpp).
MultistepResults call_run_from_cpp(const MultistepCall& call);

inline MultistepResults call_run_forward(const MultistepCall& call, bool save) {
  static const auto op = find_operator<traced::Forward>("spikeforge::run_forward");
  const auto [outputs, states, kept] =
      op.call(traced::LoweredText(call).text(),
              traced::arguments_of(call.inputs, traced::given_states(call), call.params), call.store_states, save,
              call.bits, maybe(call.lengths), maybe(call.start), call.scan, maybe(call.seed), maybe(call.offset));
  return traced::results_of(outputs, states, kept);
}

inline Tensors call_run_backward(const BackwardCall& call) {
  static const auto op = find_operator<traced::Backward>("spikeforge::run_backward");
  return traced::tensors_of(op.call(traced::LoweredText(call).text(), traced::optional_list(call.grad_outputs),
                                    traced::optional_list(call.grad_states), call.inputs, traced::given_states(call),
                                    call.params, call.checkpoints, traced::needs_grad_of_given(call), call.store_states,
                                    maybe(call.lengths), maybe(call.start), maybe(call.seed), maybe(call.offset)));
}

}  // namespace spikeforge::ops
