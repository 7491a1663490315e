// The public operators of Loihi's neurons, each lowered to loihi_forward or, if x is floating point, to the text of
// differentiable_neurons.cpp; and loihi_forward itself.
#include "ops/common/library.h"
#include "ops/loihi.h"
#include "ops/loihi/connections.h"
#include "ops/loihi/neuron_call.h"
#include "ops/multistep/samples.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge {
namespace ops {

void check_thresholds(const LoihiCell& cell, const c10::List<std::optional<at::Tensor>>& params,
                      c10::ArrayRef<std::int64_t> numbers) {
  using Ternary = Loihi<true, LoihiForm::plain>;
  const auto is_tensor = [&](std::size_t j) {
    const std::optional<at::Tensor> given = params.get(j);
    return given.has_value() && given->defined();
  };
  if (!cell.ternary || is_tensor(Ternary::vth) || is_tensor(Ternary::vth_lo)) return;
  const std::int64_t high = numbers[Ternary::vth], low = numbers[Ternary::vth_lo];
  TORCH_CHECK_VALUE(low <= high, cell.name, ": vth_lo must not be above vth_hi, but is ", low, ", and vth_hi is ",
                    high);
}

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using LoihiTensors = c10::List<MaybeTensor>;

// ---- the lowered operator ----

LoihiForm parse_form(std::string_view name) {
  for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory})
    if (name == name_of(form)) return form;
  TORCH_CHECK_VALUE(false, "loihi_forward: form must be plain, reset or refractory, but is ", name);
}

Tensors undefined_for_none(const LoihiTensors& list) {
  Tensors tensors;
  for (const std::optional<at::Tensor> t : list) tensors.push_back(t.value_or(at::Tensor()));
  return tensors;
}

// Throws for tensors with a value out of range. Only tensors on the CPU are read.
void check_values(const MultistepCall& call) {
  constexpr std::int64_t most_state = std::int64_t{1} << 23;  // of u and v
  const Cell& cell = *call.cell;
  for (std::size_t s = 0; s < cell.states.size(); ++s)
    if (call.state(s).defined()) {
      const bool counts = s == 2;
      check_elements(cell.name.c_str(), cell.states[s].c_str(), call.state(s), counts ? 0 : -most_state,
                     counts ? std::numeric_limits<std::int32_t>::max() : most_state);
    }
  for (std::size_t j = 0; j < cell.params.size(); ++j)
    if (call.param(j).defined())
      check_elements(cell.name.c_str(), cell.params[j].name.c_str(), call.param(j), cell.params[j].least,
                     cell.params[j].most);
}

// Converts `forward` to a kernel for the dispatcher. None means a state of 0, or a scalar parameter. `reads` is true if
// tensors have data.
template <MultistepResults (*forward)(const MultistepCall&, bool save), bool reads>
std::vector<at::Tensor> loihi_forward(const at::Tensor& x, const LoihiTensors& states, const LoihiTensors& params,
                                      at::IntArrayRef numbers, bool ternary, std::string_view form, bool store_states,
                                      const std::optional<at::Tensor>& lengths,
                                      const std::optional<at::Tensor>& start) {
  const LoihiCell& cell = loihi_cell(ternary, parse_form(form));
  TORCH_CHECK_VALUE(states.size() == cell.states.size(), cell.name, ": states must have ", cell.states.size(),
                    " entries, but has ", states.size());
  TORCH_CHECK_VALUE(params.size() == cell.params.size() && numbers.size() == cell.params.size(), cell.name,
                    ": params and numbers must have ", cell.params.size(), " entries, but have ", params.size(),
                    " and ", numbers.size());
  const Tensors given_states = undefined_for_none(states), given_params = undefined_for_none(params);
  const c10::SmallVector<double, 8> doubles(numbers.begin(), numbers.end());
  MultistepCall call;
  call.cell = &cell;
  call.inputs = x;
  call.states = given_states;
  call.params = given_params;
  call.numbers = doubles;
  call.store_states = store_states;
  set_samples(call, lengths, start);
  check_arguments(call);  // reports errors of shapes and types first
  check_thresholds(cell, params, numbers);
  if constexpr (reads) check_values(call);
  MultistepResults results = forward(call, /*save=*/false);
  std::vector<at::Tensor> all{std::move(results.outputs[0])};
  for (at::Tensor& state : results.states) all.push_back(std::move(state));
  return all;
}

SPIKEFORGE_KERNELS(CPU, library) { library.impl("loihi_forward", TORCH_FN((loihi_forward<forward_cpu, true>))); }
SPIKEFORGE_KERNELS(Meta, library) { library.impl("loihi_forward", TORCH_FN((loihi_forward<forward_meta, false>))); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { library.impl("loihi_forward", TORCH_FN((loihi_forward<forward_cuda, true>))); }
#endif

// ---- the public operators ----

using Forward = std::vector<Tensor>(const Tensor&, const c10::List<MaybeTensor>&, const c10::List<MaybeTensor>&,
                                    at::IntArrayRef, bool, std::string_view, bool, const MaybeTensor&,
                                    const MaybeTensor&);

std::vector<Tensor> run_loihi(const LoihiCell& cell, const LoihiCall& call) {
  if (at::isFloatingType(call.x.scalar_type())) return run_differentiably(cell, call);
  static const auto op = find_operator<Forward>("spikeforge::loihi_forward");
  return op.call(call.x, call.states, call.params, call.numbers, cell.ternary, name_of(cell.form), call.store_states,
                 call.lengths, call.start);
}

std::int64_t whole_number(const LoihiCell& cell, const CellParam& param, const c10::IValue& given) {
  TORCH_CHECK_TYPE(given.isInt(), cell.name, ": ", param.name, " must be a whole number, but is ", given);
  return given.toInt();
}

// Returns the number of arguments of an operator.
std::size_t arguments_of(const LoihiCell& cell) { return 7 + cell.states.size() + cell.params.size(); }

// The kernel of all overloads of an operator: x, the states, the parameters, store_states, lengths, start, surrogate,
// surrogate_args, detach_reset. A parameter is a scalar, or a tensor with None for the default.
template <bool ternary, LoihiForm form> void run_boxed(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const LoihiCell& cell = loihi_cell(ternary, form);
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, arguments_of(cell));
  auto next = arguments.begin();
  LoihiCall call;
  call.x = (next++)->toTensor();
  for (std::size_t s = 0; s < cell.states.size(); ++s) call.states.push_back((next++)->toOptional<Tensor>());
  for (const CellParam& param : cell.params) {
    const c10::IValue& given = *next++;
    if (given.isScalar())
      call.add(std::nullopt, whole_number(cell, param, given));
    else
      call.add(given.toOptional<Tensor>(), static_cast<std::int64_t>(param.default_value));
  }
  call.store_states = (next++)->toBool();
  call.lengths = (next++)->toOptional<Tensor>();
  call.start = (next++)->toOptional<Tensor>();
  call.surrogate = (next++)->toStringRef();
  call.surrogate_args = (next++)->toDoubleVector();
  call.detach_reset = (next++)->toBool();
  for (Tensor& result : run_loihi(cell, call)) torch::jit::push(*stack, std::move(result));
}

// Integers have no gradients, so the operator is called directly. For other types of x it calls differentiable
// operators.
template <bool ternary, LoihiForm form>
void autograd_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Tensor& x = torch::jit::peek(*stack, 0, arguments_of(loihi_cell(ternary, form))).toTensor();
  if (at::isFloatingType(x.scalar_type())) return run_boxed<ternary, form>(op, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

// Often only the bias differs between neurons: one overload has a tensor of biases and scalars for other parameters.
void register_overloads(torch::Library& library, const LoihiCell& cell, torch::CppFunction (*kernel)()) {
  for (const char* const overload : {"", ".bias", ".tensor"}) library.impl((cell.name + overload).c_str(), kernel());
}

template <bool ternary, LoihiForm form> void register_neuron(torch::Library& library, bool differentiable) {
  using torch::CppFunction;
  const LoihiCell& cell = loihi_cell(ternary, form);
  if (differentiable)
    register_overloads(library, cell,
                       [] { return CppFunction::makeFromBoxedFunction<autograd_boxed<ternary, form>>(); });
  else
    register_overloads(library, cell, [] { return CppFunction::makeFromBoxedFunction<run_boxed<ternary, form>>(); });
}

void register_neurons(torch::Library& library, bool differentiable) {
  register_neuron<false, LoihiForm::plain>(library, differentiable);
  register_neuron<false, LoihiForm::reset>(library, differentiable);
  register_neuron<false, LoihiForm::refractory>(library, differentiable);
  register_neuron<true, LoihiForm::plain>(library, differentiable);
  register_neuron<true, LoihiForm::reset>(library, differentiable);
  register_neuron<true, LoihiForm::refractory>(library, differentiable);
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { register_neurons(library, /*differentiable=*/false); }
SPIKEFORGE_KERNELS(Autograd, library) { register_neurons(library, /*differentiable=*/true); }

LoihiResults run_loihi(const Tensor& x, const LoihiState& state, bool ternary, const LoihiOptions& o) {
  LoihiCall call;
  call.x = x;
  call.states.push_back(state.u);
  call.states.push_back(state.v);
  if (o.form != LoihiForm::plain) call.states.push_back(state.counter);
  const auto add = [&](const LoihiNumber& number) {
    number.is_tensor() ? call.add(number.tensor(), 0) : call.add(std::nullopt, number.number());
  };
  for (const LoihiNumber* number : {&o.du, &o.dv, &o.bias_mant, &o.bias_exp, &o.vth}) add(*number);
  if (ternary) add(o.vth_lo);
  if (o.form == LoihiForm::reset) {
    call.add(std::nullopt, o.reset_interval);
    call.add(std::nullopt, o.reset_offset);
  }
  if (o.form == LoihiForm::refractory) call.add(std::nullopt, o.refractory_period);
  call.store_states = o.store_states;
  call.lengths = o.lengths;
  call.start = o.start;
  call.surrogate = o.surrogate;
  call.surrogate_args = o.surrogate_args;
  call.detach_reset = o.detach_reset;
  std::vector<Tensor> results = run_loihi(loihi_cell(ternary, o.form), call);
  results.resize(4);
  return {std::move(results[0]), std::move(results[1]), std::move(results[2]), std::move(results[3])};
}

}  // namespace
}  // namespace ops

LoihiResults loihi_lif(const at::Tensor& x, const LoihiState& state, const LoihiOptions& options) {
  return ops::run_loihi(x, state, /*ternary=*/false, options);
}

LoihiResults loihi_ternary_lif(const at::Tensor& x, const LoihiState& state, const LoihiOptions& options) {
  return ops::run_loihi(x, state, /*ternary=*/true, options);
}

}  // namespace spikeforge
