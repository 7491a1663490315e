// The public operators of Loihi's neurons, each lowered to loihi_forward, or, where x is floating point, to the text of
// differentiable_neurons.cpp.
#include "ops/common/library.h"
#include "ops/loihi.h"
#include "ops/loihi/neuron_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/stack.h>

#include <string>
#include <utility>
#include <vector>

namespace spikeforge {
namespace ops {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
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

// How many arguments an operator has.
std::size_t arguments_of(const LoihiCell& cell) { return 7 + cell.states.size() + cell.params.size(); }

// All overloads of one operator: x, the states, the parameters, store_states, lengths, start, surrogate,
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

// Integers have no gradients: the operator stays whole. For other types of x it calls differentiable operators.
template <bool ternary, LoihiForm form>
void autograd_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Tensor& x = torch::jit::peek(*stack, 0, arguments_of(loihi_cell(ternary, form))).toTensor();
  if (at::isFloatingType(x.scalar_type())) return run_boxed<ternary, form>(op, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

// A bias often differs from neuron to neuron where nothing else does: an overload takes a tensor of it beside numbers.
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
