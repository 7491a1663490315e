// The public operators of Loihi's neurons, each lowered to loihi_forward.
#include <spikeforge/kernels/multistep/loihi_cells.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/loihi.h>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
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

// A call in the order of the cell's states and parameters.
struct LoihiCall {
  Tensor x;
  c10::List<MaybeTensor> states, params;
  std::vector<std::int64_t> numbers;
  bool store_states = false;
  MaybeTensor lengths, start;

  void add(MaybeTensor tensor, std::int64_t number) {
    params.push_back(std::move(tensor));
    numbers.push_back(number);
  }
};

std::vector<Tensor> run(const LoihiCell& cell, const LoihiCall& call) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("spikeforge::loihi_forward", "").typed<Forward>();
  return op.call(call.x, call.states, call.params, call.numbers, cell.ternary, name_of(cell.form), call.store_states,
                 call.lengths, call.start);
}

// All overloads of one operator: x, the states, the parameters, store_states, lengths, start. A parameter is a number,
// or a tensor whose None is the default.
template <bool ternary, LoihiForm form>
void run_boxed(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const LoihiCell& cell = loihi_cell(ternary, form);
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, 4 + cell.states.size() + cell.params.size());
  auto next = arguments.begin();
  LoihiCall call;
  call.x = (next++)->toTensor();
  for (std::size_t s = 0; s < cell.states.size(); ++s) call.states.push_back((next++)->toOptional<Tensor>());
  for (const CellParam& param : cell.params) {
    const c10::IValue& given = *next++;
    if (given.isInt())
      call.add(std::nullopt, given.toInt());
    else
      call.add(given.toOptional<Tensor>(), static_cast<std::int64_t>(param.default_value));
  }
  call.store_states = (next++)->toBool();
  call.lengths = (next++)->toOptional<Tensor>();
  call.start = (next++)->toOptional<Tensor>();
  for (Tensor& result : run(cell, call)) torch::jit::push(*stack, std::move(result));
}

template <bool ternary, LoihiForm form>
void register_neuron(torch::Library& library) {
  // A bias often differs from neuron to neuron where nothing else does: an overload takes a tensor of it beside
  // numbers.
  for (const char* const overload : {"", ".bias", ".tensor"})
    library.impl((loihi_cell(ternary, form).name + overload).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<run_boxed<ternary, form>>());
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  register_neuron<false, LoihiForm::plain>(library);
  register_neuron<false, LoihiForm::reset>(library);
  register_neuron<false, LoihiForm::refractory>(library);
  register_neuron<true, LoihiForm::plain>(library);
  register_neuron<true, LoihiForm::reset>(library);
  register_neuron<true, LoihiForm::refractory>(library);
}

LoihiResults run(const Tensor& x, const LoihiState& state, bool ternary, const LoihiOptions& o) {
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
  std::vector<Tensor> results = run(loihi_cell(ternary, o.form), call);
  results.resize(4);
  return {std::move(results[0]), std::move(results[1]), std::move(results[2]), std::move(results[3])};
}

}  // namespace
}  // namespace ops

LoihiResults loihi_lif(const at::Tensor& x, const LoihiState& state, const LoihiOptions& options) {
  return ops::run(x, state, /*ternary=*/false, options);
}

LoihiResults loihi_ternary_lif(const at::Tensor& x, const LoihiState& state, const LoihiOptions& options) {
  return ops::run(x, state, /*ternary=*/true, options);
}

}  // namespace spikeforge
