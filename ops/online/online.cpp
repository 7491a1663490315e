// online_linear: torch's product, `run`, and the operators of eligibility.h around it. The derivatives of online_linear
// follow from those of these operators.
#include "ops/online.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/online/eligibility.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace spikeforge::ops::online {
namespace {

constexpr const char* op = "online_linear";
constexpr std::array rules = {"eprop", "ottt"};

// All operators but online_linear and trace_of_input are lowered operators.
SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "online_linear(str neuron, Tensor x, Tensor weight, Tensor? bias, Tensor[] states, Tensor[] params, "
      "Tensor[] traces, *, str rule=\"eprop\", int into=0, Tensor[]? inputs=None, int[]? learned=None) -> "
      "(Tensor[] outputs, Tensor[] states, Tensor[] traces)");
  library.def(
      "local_jacobian(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, int into, int[] of_params) -> "
      "(Tensor[] transitions, Tensor[] drives, Tensor[] param_drives)");
  library.def("with_eligibility(Tensor state, Tensor leaf, Tensor trace, bool outer=False) -> Tensor");
  library.def("eligibility_gradient(Tensor grad, Tensor trace) -> Tensor");
  library.def(
      "advance_eligibility(Tensor[] traces, Tensor[] transitions, Tensor[] drives, Tensor? x=None) -> Tensor[]");
  library.def("trace_of_input(str neuron, int into=0) -> str");
}

using OnlineLinear = std::tuple<List, List, List>(std::string_view, const at::Tensor&, const at::Tensor&,
                                                  const std::optional<at::Tensor>&, at::TensorList, at::TensorList,
                                                  at::TensorList, std::string_view, std::int64_t, traced::MaybeList,
                                                  at::OptionalIntArrayRef);

OnlineTraces rule_of(std::string_view name) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (name == rules[i]) return static_cast<OnlineTraces>(i);
  TORCH_CHECK_VALUE(false, op, ": rule must be \"eprop\" or \"ottt\", but is \"", name, "\"");
}

List detached(at::TensorList tensors) {
  List list;
  for (const at::Tensor& t : tensors) list.push_back(t.detach());
  return list;
}

at::TensorList part(at::TensorList list, std::size_t first, std::size_t count) { return list.slice(first, count); }

void append(List& list, List more) { list.insert(list.end(), more.begin(), more.end()); }

std::tuple<List, List> run_text(std::string_view text, at::TensorList inputs, at::TensorList states,
                                at::TensorList params) {
  static const auto handle = find_operator<traced::Run>("spikeforge::run");
  return handle.call(text, inputs, states, params, /*store_states=*/false, /*bits=*/0, {}, {}, /*scan=*/false, {}, {});
}

// A call: the layer, and its parameters with traces.
struct Call {
  std::string_view neuron;
  at::Tensor x, weight, bias;  // an undefined bias means none
  at::TensorList params;
  at::TensorList traces;  // empty in the first call
  std::int64_t into;
  List inputs;                        // the inputs of the neuron
  List states;                        // before the call, without gradients
  std::vector<std::int64_t> learned;  // the indices of parameters
  std::string response;               // the text whose states are the traces of inputs

  std::size_t state_count() const { return states.size(); }
  std::size_t product_leaves() const { return bias.defined() ? 2 : 1; }
  at::Tensor ones() const { return at::ones({1}, x.options()).expand_symint(with_last(x, 1)); }

  static c10::SymDimVector with_last(const at::Tensor& t, c10::SymInt size) {
    c10::SymDimVector shape(t.sym_sizes());
    shape.back() = std::move(size);
    return shape;
  }
};

// Checks the product's arguments except x. Under autocast it casts them.
void check_beside(const char* name, const at::Tensor& t, const at::Tensor& x) {
  TORCH_CHECK_TYPE(is_supported(t.scalar_type()) &&
                       (t.scalar_type() == x.scalar_type() || at::autocast::is_autocast_enabled(x.device().type())),
                   op, ": ", name, " must be ", x.scalar_type(), ", the type of x, but is ", t.scalar_type());
  check_device({op, "x", x}, name, t);
}

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": x must have shape [T, *batch, I], but has ", x.sym_sizes());
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.sym_size(1) == x.sym_size(-1), op, ": weight must have shape [N, ",
                    x.sym_size(-1), "], for x of shape ", x.sym_sizes(), ", but has ", weight.sym_sizes());
  TORCH_CHECK_VALUE(!bias.defined() || (bias.dim() == 1 && bias.sym_size(0) == weight.sym_size(0)), op,
                    ": bias must have shape [", weight.sym_size(0), "], but has ", bias.sym_sizes());
  check_beside("weight", weight, x);
  if (bias.defined()) check_beside("bias", bias, x);
}

// Checks the neuron's lists, which are read before `run` checks them.
void check_lists(const TracedCell& cell, at::TensorList states, at::TensorList params) {
  TORCH_CHECK_VALUE(states.empty() || states.size() == cell.states.size(), op, ": states must have ",
                    cell.states.size(), " tensors, one for each state of neuron ", cell.name, ", or none, but has ",
                    states.size());
  TORCH_CHECK_VALUE(params.size() == cell.params.size(), op, ": params must have ", cell.params.size(),
                    " tensors, one for each parameter of neuron ", cell.name, ", but has ", params.size());
}

// Returns the inputs of the neuron; the product of x and weight is added to inputs[into].
List inputs_of(const TracedCell& cell, const Call& call, at::TensorList given) {
  TORCH_CHECK_VALUE(call.into >= 0 && call.into < static_cast<std::int64_t>(cell.inputs.size()), op,
                    ": into must be the index of one of ", cell.inputs.size(), " inputs, but is ", call.into);
  TORCH_CHECK_VALUE(given.empty() ? cell.inputs.size() == 1 : given.size() == cell.inputs.size(), op,
                    ": inputs must have ", cell.inputs.size(), " tensors, one for each input of neuron ", cell.name,
                    ", but has ", given.size());
  List inputs(given.begin(), given.end());
  if (inputs.empty()) inputs.resize(1);
  at::Tensor& into = inputs[static_cast<std::size_t>(call.into)];
  at::Tensor current = at::linear(call.x, call.weight, maybe(call.bias));
  if (into.defined()) {
    const std::string name = c10::str("inputs[", call.into, "]");
    TORCH_CHECK_VALUE(into.sym_sizes() == current.sym_sizes(), op, ": ", name, " must have shape ", current.sym_sizes(),
                      ", that of x times weight, but has ", into.sym_sizes());
    check_floating(op, name.c_str(), into);
    check_device({op, "x", current}, name.c_str(), into);
    current = into + current;
  }
  into = std::move(current);
  return inputs;
}

// Returns the given states, or by default the neuron's initial states, from a run of 0 steps.
List states_of(const TracedCell& cell, const Call& call, at::TensorList given) {
  if (!given.empty() || cell.states.empty()) return detached(given);
  List none;
  for (const at::Tensor& input : call.inputs) none.push_back(input.detach().narrow(0, 0, 0));
  return std::get<1>(run_text(call.neuron, none, {}, detached(call.params)));
}

// Makes the gradients of `states` also add to that of `leaf`, through one trace for each state.
void lead(List& states, const at::Tensor& leaf, at::TensorList traces, bool outer) {
  static const auto handle = find_operator<WithEligibility>("spikeforge::with_eligibility");
  for (std::size_t k = 0; k < states.size(); ++k) states[k] = handle.call(states[k], leaf, traces[k], outer);
}

// ---- e-prop ----

List states_by_synapses(const Call& call) {
  List states = call.states;
  if (call.traces.empty()) return states;
  const std::size_t count = call.state_count();
  std::size_t next = 0;
  const auto traces = [&] { return part(call.traces, std::exchange(next, next + count), count); };
  lead(states, call.weight, traces(), /*outer=*/false);
  if (call.bias.defined()) lead(states, call.bias, traces(), false);
  for (const std::int64_t j : call.learned) lead(states, call.params[static_cast<std::size_t>(j)], traces(), false);
  return states;
}

List traces_of_synapses(const Call& call) {
  static const auto jacobian = find_operator<LocalJacobian>("spikeforge::local_jacobian");
  static const auto advance = find_operator<AdvanceEligibility>("spikeforge::advance_eligibility");
  const auto [transitions, drives, param_drives] =
      jacobian.call(call.neuron, detached(call.inputs), call.states, detached(call.params), call.into, call.learned);
  const std::size_t count = call.state_count();
  std::size_t next = 0;
  const auto traces = [&] {
    return call.traces.empty() ? call.traces : part(call.traces, std::exchange(next, next + count), count);
  };
  List all = advance.call(traces(), transitions, drives, call.x.detach());
  if (call.bias.defined()) {
    List summed;
    for (std::size_t k = 0; k < count; ++k)
      summed.push_back(drives[k].sum(0, /*keepdim=*/false, transitions[k].scalar_type()));
    append(all, advance.call(traces(), transitions, summed, {}));
  }
  for (std::size_t i = 0; i < call.learned.size(); ++i)
    append(all, advance.call(traces(), transitions, part(param_drives, i * count, count), {}));
  return all;
}

// ---- OTTT ----

// Returns the traces of the neuron's states, which are the last states of the response.
at::TensorList of_states(const Call& call, at::TensorList response) {
  return part(response, response.size() - call.state_count(), call.state_count());
}

List states_by_inputs(const Call& call) {
  List states = call.states;
  if (call.traces.empty()) return states;
  const std::size_t count = call.traces.size() / call.product_leaves();
  lead(states, call.weight, of_states(call, part(call.traces, 0, count)), /*outer=*/true);
  if (call.bias.defined()) lead(states, call.bias, of_states(call, part(call.traces, count, count)), false);
  return states;
}

List traces_of_inputs(const Call& call) {
  const List params = detached(call.params);
  const std::size_t count = call.traces.size() / call.product_leaves();
  List all = std::get<1>(run_text(call.response, call.x.detach(), part(call.traces, 0, count), params));
  if (call.bias.defined())
    append(all, std::get<1>(run_text(call.response, call.ones(), part(call.traces, count, count), params)));
  return all;
}

// ----

std::size_t traces_wanted(const Call& call, OnlineTraces rule) {
  if (rule == OnlineTraces::eprop) return (call.product_leaves() + call.learned.size()) * call.state_count();
  return call.product_leaves() * cell_of(call.response, op)->states.size();
}

// Checks the traces of the previous call: [*batch, N, I] or [*batch, N] under e-prop, [*batch, I] or [*batch, 1] under
// OTTT.
void check_traces(const Call& call, OnlineTraces rule) {
  const bool of_inputs = rule == OnlineTraces::ottt;
  const std::size_t count =
      of_inputs ? call.traces.size() / call.product_leaves() : std::max<std::size_t>(call.state_count(), 1);
  for (std::size_t i = 0; i < call.traces.size(); ++i) {
    const at::Tensor& trace = call.traces[i];
    const at::Tensor& state = call.states[i % call.state_count()];
    c10::SymDimVector wanted(call.x.sym_sizes().slice(1, static_cast<std::size_t>(call.x.dim()) - 2));
    if (!of_inputs) wanted.push_back(call.weight.sym_size(0));
    if (i < count) wanted.push_back(call.x.sym_size(-1));
    if (of_inputs && i >= count) wanted.emplace_back(1);
    const std::string name = c10::str("traces[", i, "]");
    TORCH_CHECK_VALUE(trace.sym_sizes() == c10::SymIntArrayRef(wanted), op, ": ", name, " must have shape ",
                      c10::SymIntArrayRef(wanted), ", but has ", trace.sym_sizes());
    check_same_type({op, "states", state}, name.c_str(), trace);
    check_device({op, "x", call.x}, name.c_str(), trace);
  }
}

std::tuple<List, List, List> online_linear(std::string_view neuron, const at::Tensor& x, const at::Tensor& weight,
                                           const std::optional<at::Tensor>& bias, at::TensorList states,
                                           at::TensorList params, at::TensorList traces, std::string_view rule_name,
                                           std::int64_t into, traced::MaybeList inputs,
                                           at::OptionalIntArrayRef learned) {
  const OnlineTraces rule = rule_of(rule_name);
  const std::shared_ptr<const TracedCell> cell = cell_of(neuron, op);
  refuse_draws(*cell, op);
  Call call{.neuron = neuron,
            .x = x,
            .weight = weight,
            .bias = bias.value_or(at::Tensor()),
            .params = params,
            .traces = traces,
            .into = into,
            .inputs = {},
            .states = {},
            .learned = {},
            .response = {}};
  check(x, weight, call.bias);
  check_lists(*cell, states, params);
  call.inputs = inputs_of(*cell, call, inputs.value_or(at::TensorList()));
  call.states = states_of(*cell, call, states);
  for (std::size_t j = 0; j < params.size(); ++j) {
    TORCH_CHECK_VALUE(
        rule == OnlineTraces::eprop || params[j].numel() == 1, op,
        ": rule=\"ottt\": the traces of inputs are of all neurons, so that parameters must be numbers, but ",
        cell->params[j].name, " has shape ", params[j].sym_sizes());
    if (!learned && params[j].requires_grad()) call.learned.push_back(static_cast<std::int64_t>(j));
  }
  if (learned) call.learned = learned->vec();
  for (std::size_t k = 0; k < call.learned.size(); ++k) {
    const std::int64_t j = call.learned[k];
    TORCH_CHECK_VALUE(j >= 0 && j < static_cast<std::int64_t>(params.size()), op, ": learned must be indices of ",
                      params.size(), " parameters, but has ", j);
    const auto first = call.learned.begin(), here = first + static_cast<std::ptrdiff_t>(k);
    TORCH_CHECK_VALUE(std::find(first, here, j) == here, op, ": learned has ", j, " twice");
  }
  if (rule == OnlineTraces::ottt) call.response = response_text(neuron, into);
  const std::size_t wanted = traces_wanted(call, rule);
  TORCH_CHECK_VALUE(traces.empty() || traces.size() == wanted, op, ": traces must have ", wanted,
                    " tensors, those that the previous call returned, or none, but has ", traces.size());
  check_traces(call, rule);

  const bool of_synapses = rule == OnlineTraces::eprop;
  auto [outputs, next] =
      run_text(neuron, call.inputs, of_synapses ? states_by_synapses(call) : states_by_inputs(call), params);
  return {std::move(outputs), std::move(next), of_synapses ? traces_of_synapses(call) : traces_of_inputs(call)};
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { library.impl(op, TORCH_FN(online_linear)); }
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { library.impl(op, TORCH_FN(online_linear)); }

}  // namespace
}  // namespace spikeforge::ops::online

namespace spikeforge {

OnlineLayer online_linear(const Neuron& neuron, const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, at::TensorList states, at::TensorList params,
                          at::TensorList traces, const OnlineOptions& options) {
  static const auto handle = ops::find_operator<ops::online::OnlineLinear>("spikeforge::online_linear");
  auto [outputs, next, next_traces] =
      handle.call(neuron.text(), x, weight, bias, states, params, traces,
                  ops::online::rules[static_cast<std::size_t>(options.traces)], options.into,
                  options.inputs.empty() ? std::nullopt : ops::traced::MaybeList(options.inputs),
                  options.learned.has_value() ? at::OptionalIntArrayRef(*options.learned) : std::nullopt);
  return {std::move(outputs), std::move(next), std::move(next_traces)};
}

}  // namespace spikeforge
