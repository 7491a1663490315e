// The lowered operators <neuron>_forward and <neuron>_backward: their C++ signatures, generated from one pattern, and
// calls through the dispatcher. Neurons differ in having one or two states, and in decay_input.
#pragma once

#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/neuron/neuron_kind.h"
#include "ops/common/library.h"
#include "ops/multistep/multistep.h"
#include "ops/multistep/samples.h"
#include "ops/multistep/surrogate.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace spikeforge::ops {

template <class... T> struct Types {};

using OptionalTensor = const std::optional<at::Tensor>&;

template <class T, std::size_t> using Repeated = T;

template <class T, std::size_t... i> Types<Repeated<T, i>...> repeat(std::index_sequence<i...>);

template <NeuronKind kind>
using StateTypes = decltype(repeat<OptionalTensor>(std::make_index_sequence<state_count(kind)>{}));

template <class T> using TensorFor = at::Tensor;

inline NeuronKind kind_of(const MultistepCall& call) { return static_cast<const PredefinedCell*>(call.cell)->kind; }

using OptionalTensorList = c10::List<std::optional<at::Tensor>>;

// Returns a list of n_params Nones. All calls without tensor parameters share these lists, because creating one costs
// several allocations. They must not be changed.
inline const OptionalTensorList& no_tensors(std::size_t n_params) {
  static const std::vector<OptionalTensorList> lists = [] {
    std::vector<OptionalTensorList> made(16);
    for (std::size_t n = 0; n < made.size(); ++n) made[n].resize(n);
    return made;
  }();
  return lists.at(n_params);
}

namespace lowered {

// A call in the form of these operators, and its tensors.
template <class Call> class Unpacked {
 public:
  template <class... State>
  Unpacked(NeuronKind kind, const at::Tensor& x, const OptionalTensorList& params, c10::ArrayRef<double> numbers,
           CellForm form, std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool store_v,
           OptionalTensor lengths, OptionalTensor start, const State&... states)
      : states_{states.has_value() ? *states : at::Tensor()...} {
    const Cell& cell = predefined_cell(kind);
    const std::size_t n_params = cell.params.size();
    TORCH_CHECK_VALUE(params.size() == n_params && numbers.size() == n_params, cell.name,
                      ": params and numbers must have ", n_params, " entries, but have ", params.size(), " and ",
                      numbers.size());
    const bool any = std::any_of(params.begin(), params.end(), [](const auto& p) {
      const std::optional<at::Tensor> param = p;
      return param.has_value() && param->defined();
    });
    if (any)
      for (const std::optional<at::Tensor> param : params) params_.push_back(param.value_or(at::Tensor()));
    call.cell = &cell;
    call.inputs = x;
    call.states = {states_.data(), sizeof...(State)};
    call.params = params_;
    call.numbers = numbers;
    call.form = form;
    const Surrogate parsed = parse_surrogate(cell.name.c_str(), surrogate, surrogate_args);
    call.form.surrogate = parsed.kind;
    call.surrogate_args = parsed.args;
    call.store_states = store_v;
    call.lengths = lengths.value_or(at::Tensor());
    call.start = start.value_or(at::Tensor());
  }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;

  Call call;

 private:
  std::array<at::Tensor, 2> states_;
  c10::SmallVector<at::Tensor, 10> params_;
};

inline OptionalTensorList params_of(const MultistepCall& call) {
  const bool any = std::any_of(call.params.begin(), call.params.end(), [](const at::Tensor& t) { return t.defined(); });
  if (!any) return no_tensors(call.cell->params.size());
  OptionalTensorList params;
  params.reserve(call.params.size());
  for (const at::Tensor& param : call.params) params.push_back(maybe(param));
  return params;
}

inline CellForm form(bool hard_reset, bool detach_reset, bool spiking, bool decay_input = true) {
  return {.hard_reset = hard_reset, .detach_reset = detach_reset, .spiking = spiking, .decay_input = decay_input};
}

template <NeuronKind kind> using DecayTypes = std::conditional_t<has_decay_input(kind), Types<bool>, Types<>>;

// `call` packs its arguments for `run`; `call_through` unpacks them for the operator's handle.
template <NeuronKind kind, class States = StateTypes<kind>, class Decay = DecayTypes<kind>> struct Forward;

template <NeuronKind kind, class... State, class... Decay> struct Forward<kind, Types<State...>, Types<Decay...>> {
  using Results = std::tuple<at::Tensor, TensorFor<State>..., at::Tensor>;

  template <MultistepResults (*run)(const MultistepCall&, bool save)>
  static Results call(const at::Tensor& x, State... states, const OptionalTensorList& params,
                      c10::ArrayRef<double> numbers, Decay... decay_input, bool hard_reset, bool detach_reset,
                      std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool spiking, bool store_v,
                      bool save, OptionalTensor lengths, OptionalTensor start) {
    const Unpacked<MultistepCall> unpacked(kind, x, params, numbers,
                                           form(hard_reset, detach_reset, spiking, decay_input...), surrogate,
                                           surrogate_args, store_v, lengths, start, states...);
    MultistepResults results = run(unpacked.call, save);
    // The operator always returns a tensor of checkpoints.
    if (!results.checkpoints.defined()) results.checkpoints = at::empty({0}, results.states[0].options());
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      return Results(std::move(results.outputs[0]), std::move(results.states[s])..., std::move(results.checkpoints));
    }
    (std::index_sequence_for<State...>{});
  }

  using Signature = Results(const at::Tensor&, State..., const OptionalTensorList&, c10::ArrayRef<double>, Decay...,
                            bool, bool, std::string_view, c10::ArrayRef<double>, bool, bool, bool, OptionalTensor,
                            OptionalTensor);

  static MultistepResults call_through(const c10::TypedOperatorHandle<Signature>& op, const MultistepCall& call,
                                       bool save) {
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      Results results = op.call(call.inputs[0], maybe(call.state(s))..., params_of(call), call.numbers,
                                static_cast<Decay>(call.form.decay_input)..., call.form.hard_reset,
                                call.form.detach_reset, name_of(call.form.surrogate), arguments_of(call),
                                call.form.spiking, call.store_states, save, maybe(call.lengths), maybe(call.start));
      return MultistepResults{{std::move(std::get<0>(results))},
                              {std::move(std::get<1 + s>(results))...},
                              std::move(std::get<1 + sizeof...(State)>(results)),
                              {}};
    }
    (std::index_sequence_for<State...>{});
  }
};

template <NeuronKind kind, class States = StateTypes<kind>, class Decay = DecayTypes<kind>> struct Backward;

template <NeuronKind kind, class... State, class... Decay> struct Backward<kind, Types<State...>, Types<Decay...>> {
  template <Tensors (*run)(const BackwardCall&)>
  static std::vector<at::Tensor> call(OptionalTensor grad_spikes, State... grad_states, const at::Tensor& x,
                                      State... states, const at::Tensor& checkpoints, const OptionalTensorList& params,
                                      c10::ArrayRef<double> numbers, Decay... decay_input, bool hard_reset,
                                      bool detach_reset, std::string_view surrogate,
                                      c10::ArrayRef<double> surrogate_args, bool spiking, bool store_v,
                                      c10::List<bool> needs_grad, OptionalTensor lengths, OptionalTensor start) {
    Unpacked<BackwardCall> unpacked(kind, x, params, numbers, form(hard_reset, detach_reset, spiking, decay_input...),
                                    surrogate, surrogate_args, store_v, lengths, start, states...);
    BackwardCall& call = unpacked.call;
    const at::Tensor grad_output = grad_spikes.value_or(at::Tensor());
    const std::array<at::Tensor, sizeof...(State)> grad_of_states{grad_states.value_or(at::Tensor())...};
    call.grad_outputs = grad_output;
    call.grad_states = grad_of_states;
    call.checkpoints = checkpoints;
    const std::size_t n_gradients = call.cell->arguments();
    TORCH_CHECK_VALUE(needs_grad.size() == n_gradients, call.cell->backward_op, ": needs_grad must have ", n_gradients,
                      " entries, but has ", needs_grad.size());
    for (const bool needs : needs_grad) call.needs_grad.push_back(needs);
    const Tensors results = run(call);
    return {results.begin(), results.end()};
  }

  using Signature = std::vector<at::Tensor>(OptionalTensor, State..., const at::Tensor&, State..., const at::Tensor&,
                                            const OptionalTensorList&, c10::ArrayRef<double>, Decay..., bool, bool,
                                            std::string_view, c10::ArrayRef<double>, bool, bool, c10::List<bool>,
                                            OptionalTensor, OptionalTensor);

  static Tensors call_through(const c10::TypedOperatorHandle<Signature>& op, const BackwardCall& call) {
    c10::List<bool> needs_grad;
    needs_grad.reserve(call.needs_grad.size());
    for (const bool needs : call.needs_grad) needs_grad.push_back(needs);
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      const std::vector<at::Tensor> results =
          op.call(maybe(call.grad_outputs[0]), maybe(call.grad_states[s])..., call.inputs[0], maybe(call.state(s))...,
                  call.checkpoints, params_of(call), call.numbers, static_cast<Decay>(call.form.decay_input)...,
                  call.form.hard_reset, call.form.detach_reset, name_of(call.form.surrogate), arguments_of(call),
                  call.form.spiking, call.store_states, needs_grad, maybe(call.lengths), maybe(call.start));
      return Tensors(results.begin(), results.end());
    }
    (std::index_sequence_for<State...>{});
  }
};

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const std::string& name, const char* overload = "") {
  return find_operator<Signature>(("spikeforge::" + name).c_str(), overload);
}

template <NeuronKind kind> MultistepResults forward(const MultistepCall& call, bool save) {
  static const auto op = find<typename Forward<kind>::Signature>(predefined_cell(kind).name + "_forward");
  return Forward<kind>::call_through(op, call, save);
}

template <NeuronKind kind> Tensors backward(const BackwardCall& call) {
  static const auto op = find<typename Backward<kind>::Signature>(predefined_cell(kind).name + "_backward");
  return Backward<kind>::call_through(op, call);
}

}  // namespace lowered

// Call the operators through the dispatcher.
inline MultistepResults call_forward(const MultistepCall& call, bool save) {
  return with_kind(kind_of(call), [&]<NeuronKind kind>() { return lowered::forward<kind>(call, save); });
}
inline Tensors call_backward(const BackwardCall& call) {
  return with_kind(kind_of(call), [&]<NeuronKind kind>() { return lowered::backward<kind>(call); });
}

// Registers one device's kernels for all neurons.
template <MultistepResults (*run_forward)(const MultistepCall&, bool), Tensors (*run_backward)(const BackwardCall&)>
void register_lowered(torch::Library& library) {
  for_each_neuron([&]<NeuronKind kind>() {
    const PredefinedCell& cell = predefined_cell(kind);
    library.impl((cell.name + "_forward").c_str(), TORCH_FN((lowered::Forward<kind>::template call<run_forward>)));
    library.impl(cell.backward_op.c_str(), TORCH_FN((lowered::Backward<kind>::template call<run_backward>)));
  });
}

}  // namespace spikeforge::ops
