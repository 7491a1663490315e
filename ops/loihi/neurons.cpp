// The public operators of Loihi's neurons, each lowered to loihi_forward.
#include <spikeforge/ops/loihi.h>
#include <spikeforge/kernels/multistep/loihi_cells.h>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge {
namespace ops {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using LoihiTensors = c10::List<MaybeTensor>;
using Two = std::tuple<Tensor, Tensor, Tensor>;            // spikes, u, v
using Three = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // and phase or wait
using Forward = std::vector<Tensor>(const Tensor&, const LoihiTensors&, const LoihiTensors&, at::IntArrayRef, bool,
                                    std::string_view, bool);

// A parameter of either overload: a number, or a tensor whose None is the default.
struct Value {
  Value(std::int64_t number, std::int64_t) : number(number) {}
  Value(const MaybeTensor& tensor, std::int64_t otherwise) : tensor(tensor), number(otherwise) {}

  MaybeTensor tensor;
  std::int64_t number = 0;
};

std::vector<Tensor> call(const Tensor& x, const std::vector<MaybeTensor>& states, const std::vector<Value>& values,
                         bool ternary, LoihiForm form, bool store_states) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("spikeforge::loihi_forward", "").typed<Forward>();
  LoihiTensors given_states, params;
  for (const MaybeTensor& state : states) given_states.push_back(state);
  std::vector<std::int64_t> numbers;
  for (const Value& value : values) {
    params.push_back(value.tensor);
    numbers.push_back(value.number);
  }
  return op.call(x, given_states, params, numbers, ternary, name_of(form), store_states);
}

Two two(std::vector<Tensor> results) { return {std::move(results[0]), std::move(results[1]), std::move(results[2])}; }
Three three(std::vector<Tensor> results) {
  return {std::move(results[0]), std::move(results[1]), std::move(results[2]), std::move(results[3])};
}

constexpr std::int64_t vth_default = 10;

// P and B are std::int64_t or const MaybeTensor&. A bias often differs from neuron to neuron where nothing else does,
// so an overload takes a tensor of it beside numbers: there B is const Tensor&.

template <class P, class B>
Two lif(const Tensor& x, const MaybeTensor& u, const MaybeTensor& v, P du, P dv, B bias_mant, P bias_exp, P vth,
        bool store_states) {
  return two(call(x, {u, v}, {{du, 0}, {dv, 0}, {bias_mant, 0}, {bias_exp, 0}, {vth, vth_default}}, /*ternary=*/false,
                  LoihiForm::plain, store_states));
}

template <class P, class B>
Three lif_reset(const Tensor& x, const MaybeTensor& u, const MaybeTensor& v, const MaybeTensor& phase, P du, P dv,
                B bias_mant, P bias_exp, P vth, std::int64_t reset_interval, std::int64_t reset_offset,
                bool store_states) {
  return three(call(
      x, {u, v, phase},
      {{du, 0}, {dv, 0}, {bias_mant, 0}, {bias_exp, 0}, {vth, vth_default}, {reset_interval, 0}, {reset_offset, 0}},
      /*ternary=*/false, LoihiForm::reset, store_states));
}

template <class P, class B>
Three lif_refractory(const Tensor& x, const MaybeTensor& u, const MaybeTensor& v, const MaybeTensor& wait, P du, P dv,
                     B bias_mant, P bias_exp, P vth, std::int64_t refractory_period, bool store_states) {
  return three(call(x, {u, v, wait},
                    {{du, 0}, {dv, 0}, {bias_mant, 0}, {bias_exp, 0}, {vth, vth_default}, {refractory_period, 0}},
                    /*ternary=*/false, LoihiForm::refractory, store_states));
}

template <class P, class B>
Two ternary_lif(const Tensor& x, const MaybeTensor& u, const MaybeTensor& v, P du, P dv, B bias_mant, P bias_exp,
                P vth_hi, P vth_lo, bool store_states) {
  return two(call(x, {u, v},
                  {{du, 0}, {dv, 0}, {bias_mant, 0}, {bias_exp, 0}, {vth_hi, vth_default}, {vth_lo, -vth_default}},
                  /*ternary=*/true, LoihiForm::plain, store_states));
}

template <class P, class B>
Three ternary_lif_reset(const Tensor& x, const MaybeTensor& u, const MaybeTensor& v, const MaybeTensor& phase, P du,
                        P dv, B bias_mant, P bias_exp, P vth_hi, P vth_lo, std::int64_t reset_interval,
                        std::int64_t reset_offset, bool store_states) {
  return three(call(x, {u, v, phase},
                    {{du, 0},
                     {dv, 0},
                     {bias_mant, 0},
                     {bias_exp, 0},
                     {vth_hi, vth_default},
                     {vth_lo, -vth_default},
                     {reset_interval, 0},
                     {reset_offset, 0}},
                    /*ternary=*/true, LoihiForm::reset, store_states));
}

template <class P, class B>
Three ternary_lif_refractory(const Tensor& x, const MaybeTensor& u, const MaybeTensor& v, const MaybeTensor& wait, P du,
                             P dv, B bias_mant, P bias_exp, P vth_hi, P vth_lo, std::int64_t refractory_period,
                             bool store_states) {
  return three(call(x, {u, v, wait},
                    {{du, 0},
                     {dv, 0},
                     {bias_mant, 0},
                     {bias_exp, 0},
                     {vth_hi, vth_default},
                     {vth_lo, -vth_default},
                     {refractory_period, 0}},
                    /*ternary=*/true, LoihiForm::refractory, store_states));
}

TORCH_LIBRARY_IMPL(spikeforge, CompositeExplicitAutograd, library) {
  using Number = std::int64_t;
  using Tensors = const MaybeTensor&;
  library.impl("loihi_lif", TORCH_FN((lif<Number, Number>)));
  library.impl("loihi_lif.bias", TORCH_FN((lif<Number, const Tensor&>)));
  library.impl("loihi_lif.tensor", TORCH_FN((lif<Tensors, Tensors>)));
  library.impl("loihi_lif_reset", TORCH_FN((lif_reset<Number, Number>)));
  library.impl("loihi_lif_reset.bias", TORCH_FN((lif_reset<Number, const Tensor&>)));
  library.impl("loihi_lif_reset.tensor", TORCH_FN((lif_reset<Tensors, Tensors>)));
  library.impl("loihi_lif_refractory", TORCH_FN((lif_refractory<Number, Number>)));
  library.impl("loihi_lif_refractory.bias", TORCH_FN((lif_refractory<Number, const Tensor&>)));
  library.impl("loihi_lif_refractory.tensor", TORCH_FN((lif_refractory<Tensors, Tensors>)));
  library.impl("loihi_ternary_lif", TORCH_FN((ternary_lif<Number, Number>)));
  library.impl("loihi_ternary_lif.bias", TORCH_FN((ternary_lif<Number, const Tensor&>)));
  library.impl("loihi_ternary_lif.tensor", TORCH_FN((ternary_lif<Tensors, Tensors>)));
  library.impl("loihi_ternary_lif_reset", TORCH_FN((ternary_lif_reset<Number, Number>)));
  library.impl("loihi_ternary_lif_reset.bias", TORCH_FN((ternary_lif_reset<Number, const Tensor&>)));
  library.impl("loihi_ternary_lif_reset.tensor", TORCH_FN((ternary_lif_reset<Tensors, Tensors>)));
  library.impl("loihi_ternary_lif_refractory", TORCH_FN((ternary_lif_refractory<Number, Number>)));
  library.impl("loihi_ternary_lif_refractory.bias", TORCH_FN((ternary_lif_refractory<Number, const Tensor&>)));
  library.impl("loihi_ternary_lif_refractory.tensor", TORCH_FN((ternary_lif_refractory<Tensors, Tensors>)));
}

Value value_of(const LoihiNumber& number) {
  return number.is_tensor() ? Value(number.tensor(), 0) : Value(number.number(), 0);
}

LoihiResults run(const Tensor& x, const LoihiState& state, std::vector<Value> values, const LoihiOptions& options,
                 bool ternary) {
  std::vector<MaybeTensor> states{state.u, state.v};
  if (options.form != LoihiForm::plain) states.push_back(state.counter);
  if (options.form == LoihiForm::reset) {
    values.emplace_back(options.reset_interval, 0);
    values.emplace_back(options.reset_offset, 0);
  }
  if (options.form == LoihiForm::refractory) values.emplace_back(options.refractory_period, 0);
  std::vector<Tensor> results = call(x, states, values, ternary, options.form, options.store_states);
  results.resize(4);
  return {std::move(results[0]), std::move(results[1]), std::move(results[2]), std::move(results[3])};
}

}  // namespace
}  // namespace ops

LoihiResults loihi_lif(const at::Tensor& x, const LoihiState& state, const LoihiOptions& o) {
  using ops::value_of;
  return ops::run(x, state,
                  {value_of(o.du), value_of(o.dv), value_of(o.bias_mant), value_of(o.bias_exp), value_of(o.vth)}, o,
                  /*ternary=*/false);
}

LoihiResults loihi_ternary_lif(const at::Tensor& x, const LoihiState& state, const LoihiOptions& o) {
  using ops::value_of;
  return ops::run(x, state,
                  {value_of(o.du), value_of(o.dv), value_of(o.bias_mant), value_of(o.bias_exp), value_of(o.vth),
                   value_of(o.vth_lo)},
                  o, /*ternary=*/true);
}

}  // namespace spikeforge
