#include "ops/multistep/derivatives.h"
#include "csrc/autodiff/jvp.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/traced_cell.h"
#include "csrc/kernels/multistep/written_step.h"
#include "ops/common/checks.h"
#include "ops/multistep/derived_texts.h"
#include "ops/multistep/text_call.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>

#include <utility>
#include <vector>

namespace spikeforge::ops {
namespace {

using Mask = std::vector<bool>;
using Choices = std::tuple<bool, bool, bool, bool, SurrogateKind, SurrogateArgs, bool>;

// Returns a predefined neuron as equations. With `starts`, its states restart if a second input is 1, at values that
// may be parameters; the starts of a text are constants.
graph::Cell written(NeuronKind kind, const CellForm& form, const graph::Surrogate& surrogate, bool starts) {
  const PredefinedCell& cell = predefined_cell(kind);
  graph::Signature signature{cell.name, cell.inputs, {}, {}};
  if (starts) signature.inputs.emplace_back("start");
  for (const std::string& state : cell.states) signature.states.emplace_back(state);
  for (const CellParam& param : cell.params) signature.params.push_back(param.name);
  const std::vector<InitialState> initial = initial_states(kind, form.hard_reset);
  return graph::trace(signature, [&](graph::Values inputs, graph::Values states, graph::Values params) {
    std::vector<graph::Value> before(states.begin(), states.end());
    if (starts)
      for (std::size_t s = 0; s < before.size(); ++s)
        before[s] = where(inputs[1] != 0,
                          initial[s].param < 0 ? graph::Value(initial[s].number) : params[initial[s].param], before[s]);
    WrittenStep step = written_step(kind, form, surrogate, params, inputs[0], before);
    return graph::Step{{step.spike}, std::move(step.next_states)};
  });
}

std::shared_ptr<const TracedCell> written_cell(const MultistepCall& call) {
  const auto& cell = static_cast<const PredefinedCell&>(*call.cell);
  const CellForm& form = call.form;
  const Choices choices{form.hard_reset, form.detach_reset,   form.spiking,        form.decay_input,
                        form.surrogate,  call.surrogate_args, call.start.defined()};
  auto& texts = cell.derivatives.get<DerivedTexts<Choices>>([] { return DerivedTexts<Choices>(); });
  return cell_of(texts.get(choices, [&] {
    return graph::on_a_line(
        graph::print(written(cell.kind, form, {form.surrogate, call.surrogate_args}, call.start.defined())));
  }));
}

std::shared_ptr<const TracedCell> jvp_of(const TracedCell& cell, const Mask& inputs, const Mask& params) {
  auto& texts =
      cell.derivatives.get<DerivedTexts<std::pair<Mask, Mask>>>([] { return DerivedTexts<std::pair<Mask, Mask>>(); });
  try {
    return cell_of(texts.get(
        {inputs, params}, [&] { return graph::on_a_line(graph::print(autodiff::jvp(cell.graph, inputs, params))); }));
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, cell.name, ": its second derivative, or forward mode: ", error.what());
  }
}

// Tensors of a call's arguments, in the lists of `run`.
struct Lists {
  Tensors inputs, states, params;
};

// A call, converted to a call of a text. A call of a text is not changed. For a predefined neuron, scalars become
// tensors, initial states that depend on parameters are computed, and starts of samples become an additional input.
class AsText {
 public:
  explicit AsText(const MultistepCall& call) : call_(call) {
    check_arguments(call);
    if (is_text()) {
      cell_ = cell_of(traced::text_of(call));
    } else {
      cell_ = written_cell(call);
      starts_ = initial_states(static_cast<const PredefinedCell&>(*call.cell).kind, call.form.hard_reset);
    }
    const at::Tensor& x = call.inputs[0];
    step_ = c10::SymDimVector(x.sym_sizes().begin() + 1, x.sym_sizes().end());
    state_options_ = x.options().dtype(state_type(x.scalar_type()));
  }

  const TracedCell& cell() const { return *cell_; }

  // Returns the argument `start` of `run`.
  at::Tensor start() const { return is_text() ? call_.start : at::Tensor(); }

  Lists values(const ByArgument& given) const {
    Lists lists;
    for (std::size_t i = 0; i < inputs(); ++i) lists.inputs.push_back(given[i]);
    if (has_start_input()) {
      const at::Tensor& x = call_.inputs[0];
      lists.inputs.push_back(call_.start.to(x.scalar_type()).expand_symint(x.sym_sizes()));
    }
    for (std::size_t j = 0; j < params(); ++j) {
      const at::Tensor& param = given[inputs() + states() + j];
      const double number = j < call_.numbers.size() ? call_.numbers[j] : 0;  // v_reset, under soft reset
      lists.params.push_back(param.defined() ? param : at::scalar_tensor(number, state_options_));
    }
    if (has_states())
      for (std::size_t s = 0; s < states(); ++s) {
        const at::Tensor& state = given[inputs() + s];
        lists.states.push_back(state.defined() ? state : initial(s, lists.params));
      }
    return lists;
  }

  // Converts tangents, which are undefined if there are none. Either all states have tangents, or none.
  Lists tangents(const ByArgument& given) const {
    Lists lists;
    for (std::size_t i = 0; i < inputs(); ++i) lists.inputs.push_back(given[i]);
    if (has_start_input()) lists.inputs.emplace_back();
    for (std::size_t j = 0; j < params(); ++j) lists.params.push_back(given[inputs() + states() + j]);
    if (has_states())
      for (std::size_t s = 0; s < states(); ++s) {
        const at::Tensor& tangent = given[inputs() + s];
        const bool from_param = starts_at_param(s) && lists.params[starts_[s].param].defined();
        lists.states.push_back(tangent.defined() ? tangent
                               : from_param      ? spread(lists.params[starts_[s].param])
                                                 : zeros());
      }
    return lists;
  }

  // True if the gradient of a state of `run` is needed, given the needed gradients of the call's arguments.
  bool wants_state(std::size_t s, c10::ArrayRef<bool> wanted) const {
    return wanted[inputs() + s] || (starts_at_param(s) && wanted[inputs() + states() + starts_[s].param]);
  }

  // Converts the gradients of `run`'s lists to those of the call's arguments.
  ByArgument gradients(const Lists& of_lists, const ByArgument& given, c10::ArrayRef<bool> wanted) const {
    ByArgument list(given.size());
    for (std::size_t i = 0; i < inputs(); ++i) list[i] = of_lists.inputs[i];
    for (std::size_t j = 0; j < params(); ++j) list[inputs() + states() + j] = of_lists.params[j];
    for (std::size_t s = 0; s < of_lists.states.size(); ++s) {
      const at::Tensor& gradient = of_lists.states[s];
      if (!gradient.defined()) continue;
      if (!starts_at_param(s)) {
        list[inputs() + s] = gradient;
        continue;
      }
      const std::size_t param = inputs() + states() + static_cast<std::size_t>(starts_[s].param);
      const at::Tensor share = at::sum_to(gradient, given[param].sym_sizes()).to(given[param].options());
      list[param] = list[param].defined() ? at::add(list[param], share) : share;
    }
    for (std::size_t i = 0; i < list.size(); ++i)
      if (!wanted[i]) list[i] = at::Tensor();
    return list;
  }

 private:
  bool is_text() const { return call_.cell->maker == Cell::Maker::traced; }
  bool has_start_input() const { return !is_text() && call_.start.defined(); }
  bool given_state(std::size_t s) const { return call_.state(s).defined(); }
  bool has_states() const { return !is_text() || (states() > 0 && given_state(0)); }
  bool starts_at_param(std::size_t s) const { return !is_text() && !given_state(s) && starts_[s].param >= 0; }
  std::size_t inputs() const { return call_.cell->inputs.size(); }
  std::size_t states() const { return call_.cell->states.size(); }
  std::size_t params() const { return call_.cell->params.size(); }

  // States are created from x, because they must be DTensors if x is.
  at::Tensor zeros() const { return call_.inputs[0].new_zeros_symint(step_, state_options_); }
  // Expands a parameter to a state: a one-element parameter may be on the CPU, but a state must not be.
  at::Tensor spread(const at::Tensor& param) const { return at::add(zeros(), param.to(state_options_)); }
  at::Tensor initial(std::size_t s, const Tensors& params) const {
    if (starts_at_param(s)) return spread(params[starts_[s].param]);
    return call_.inputs[0].new_full_symint(step_, starts_[s].number, state_options_);
  }

  const MultistepCall& call_;
  std::shared_ptr<const TracedCell> cell_;
  std::vector<InitialState> starts_;
  c10::SymDimVector step_;
  at::TensorOptions state_options_;
};

// A call of the jvp's cell.
class JvpCall {
 public:
  JvpCall(const MultistepCall& of, const AsText& as_text, const ByArgument& values, const ByArgument& tangents)
      : lists_(as_text.values(values)) {
    call.lengths = of.lengths;
    call.start = as_text.start();
    call.seed = of.seed;
    call.offset = of.offset;
    const Lists of_tangents = as_text.tangents(tangents);
    inputs_ = append(lists_.inputs, of_tangents.inputs);
    append(lists_.states, of_tangents.states);
    params_ = append(lists_.params, of_tangents.params);
    call.holder = jvp_of(as_text.cell(), inputs_, params_);
    call.cell = call.holder.get();
    call.inputs = lists_.inputs;
    call.states = lists_.states;
    call.params = lists_.params;
  }
  JvpCall(const JvpCall&) = delete;
  JvpCall& operator=(const JvpCall&) = delete;

  BackwardCall call;

 private:
  static Mask append(Tensors& list, const Tensors& tangents) {
    Mask mask;
    for (const at::Tensor& tangent : tangents) {
      mask.push_back(tangent.defined());
      if (tangent.defined()) list.push_back(tangent);
    }
    return mask;
  }

  Lists lists_;
  Mask inputs_, params_;
};

}  // namespace

ByArgument tensors_of(const MultistepCall& call) {
  ByArgument list;
  for_each_argument(call, [&](const at::Tensor& t) { list.push_back(t); });
  return list;
}

void set_tensors(MultistepCall& call, at::TensorList by_argument) {
  const std::size_t inputs = call.cell->inputs.size(), states = call.cell->states.size();
  call.inputs = by_argument.slice(0, inputs);
  call.states = by_argument.slice(inputs, states);
  call.params = by_argument.slice(inputs + states);
}

ByArgument gradients_by_argument(const BackwardCall& call, Tensors listed) {
  ByArgument list(call.cell->arguments());
  auto next = listed.begin();
  for (std::size_t i = 0; i < list.size(); ++i)
    if (call.needs_grad[i]) list[i] = std::move(*next++);
  return list;
}

Tangents run_with_tangents(const MultistepCall& call, const ByArgument& tangents) {
  JvpCall jvp(call, AsText(call), tensors_of(call), tangents);
  jvp.call.store_states = call.store_states;
  MultistepResults both = call_run(jvp.call);
  const std::size_t outputs = call.cell->outputs.size(), states = call.cell->states.size();
  Tangents results;
  for (std::size_t k = 0; k < both.outputs.size(); ++k)
    (k < outputs ? results.values.outputs : results.outputs).push_back(both.outputs[k]);
  for (std::size_t s = 0; s < both.states.size(); ++s)
    (s < states ? results.values.states : results.states).push_back(both.states[s]);
  return results;
}

ByArgument gradients_with_tangents(const MultistepCall& call, const ByArgument& tangents, at::TensorList grads,
                                   at::TensorList grads_of_tangents, c10::ArrayRef<bool> wanted) {
  const AsText as_text(call);
  const ByArgument given = tensors_of(call);
  JvpCall jvp(call, as_text, given, tangents);
  BackwardCall& backward = jvp.call;
  backward.store_states = call.store_states;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // checkpoints depend only on the arguments
    backward.checkpoints = call_run_forward(backward, /*save=*/true).checkpoints;
  }

  const std::size_t outputs = call.cell->outputs.size();
  Tensors grad_outputs, grad_states;
  for (const at::TensorList list : {grads, grads_of_tangents})
    for (std::size_t k = 0; k < list.size(); ++k) (k < outputs ? grad_outputs : grad_states).push_back(list[k]);
  backward.grad_outputs = grad_outputs;
  backward.grad_states = grad_states;

  // The jvp's own inputs, states and parameters each begin with the call's.
  const std::size_t inputs = call.cell->inputs.size(), states = call.cell->states.size();
  const std::size_t params = call.cell->params.size();
  const std::size_t first_state = backward.inputs.size(), first_param = first_state + backward.cell->states.size();
  backward.needs_grad.assign(backward.cell->arguments(), false);
  for (std::size_t i = 0; i < inputs; ++i) backward.needs_grad[i] = wanted[i];
  if (!backward.states.empty())
    for (std::size_t s = 0; s < states; ++s) backward.needs_grad[first_state + s] = as_text.wants_state(s, wanted);
  for (std::size_t j = 0; j < params; ++j) backward.needs_grad[first_param + j] = wanted[inputs + states + j];

  const ByArgument gradients = gradients_by_argument(backward, call_run_backward(backward));
  const auto part = [&](std::size_t first, std::size_t count) {
    return Tensors(gradients.begin() + first, gradients.begin() + first + count);
  };
  return as_text.gradients({part(0, inputs), part(first_state, states), part(first_param, params)}, given, wanted);
}

}  // namespace spikeforge::ops
