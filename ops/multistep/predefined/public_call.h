// The public operators' C++ signatures, generated from neurons.def. Each has three overloads, whose parameters are
// scalars, tensors, or either, all lowered to one MultistepCall; `run` is the next step: with autograd, without, or
// over a mapped dimension.
//
// Calls from Python and TorchScript use `any`, which accepts either. It is the first overload, because torch prints the
// tensors of a call when it tries an overload that does not match. The others are for C++ callers, for the graphs of
// tracers, which do not support the type Any, and for scalars that are symbols of a graph.
#pragma once

#include "ops/common/checks.h"
#include "ops/multistep/predefined/lowered.h"
#include "ops/multistep/samples.h"

#include <ATen/core/stack.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Scalar.h>

#include <array>
#include <utility>

namespace spikeforge::ops {

// The parameters of a public operator's two overloads: scalars, or tensors with None for the default.
struct OfNumbers {
  static constexpr const char* overload = "";
  using Number = const at::Scalar&;
  using Reset = const std::optional<at::Scalar>&;
};
struct OfTensors {
  static constexpr const char* overload = "tensor";
  using Number = OptionalTensor;
  using Reset = OptionalTensor;
};

// The tensors before the states, such as PLIF's w.
template <NeuronKind kind>
using TensorParamTypes = decltype(repeat<const at::Tensor&>(std::make_index_sequence<tensor_count(kind)>{}));

template <NeuronParam::Role role, class Overload>
using ParamType = std::conditional_t<
    role == NeuronParam::decay_input, bool,
    std::conditional_t<role == NeuronParam::v_reset, typename Overload::Reset, typename Overload::Number>>;

template <NeuronKind kind, class Overload, std::size_t... i>
Types<ParamType<neuron_row(kind).params.begin()[i].role, Overload>...> param_types(std::index_sequence<i...>);

// The parameters and decay_input, in their order.
template <NeuronKind kind, class Overload>
using ParamTypes = decltype(param_types<kind, Overload>(std::make_index_sequence<neuron_row(kind).params.size()>{}));

using Run = MultistepResults (*)(const MultistepCall&);

// Collects a call's parameters in their order.
class PublicCall {
 public:
  PublicCall(NeuronKind kind, const at::Tensor& x) : cell_(predefined_cell(kind)) {
    call_.cell = &cell_;
    call_.inputs = x;
  }
  PublicCall(const PublicCall&) = delete;
  PublicCall& operator=(const PublicCall&) = delete;

  void add_state(const std::optional<at::Tensor>& state) { states_[n_states_++] = state.value_or(at::Tensor()); }

  void add(bool decay_input) { call_.form.decay_input = decay_input; }
  void add(double number) { add(at::Tensor(), number); }
  void add(const at::Scalar& number) { add(at::Tensor(), real(number)); }
  void add(const at::Tensor& tensor) { add(tensor, 0); }
  // Adds a scalar, or v_reset, for which None is soft reset.
  void add(const std::optional<at::Scalar>& number) {
    call_.form.hard_reset = number.has_value();
    add(at::Tensor(), number.has_value() ? real(*number) : 0);
  }
  // Adds a tensor. None is soft reset for v_reset, and the default for others.
  void add(const std::optional<at::Tensor>& tensor) {
    if (next().name == "v_reset") call_.form.hard_reset = tensor.has_value();
    add(tensor.value_or(at::Tensor()), next().default_value);
  }
  void soft_reset() {
    call_.form.hard_reset = false;
    add(at::Tensor(), 0);
  }
  // Adds a scalar, a tensor or None.
  void add_any(const c10::IValue& value) {
    if (value.isTensor()) return add(std::optional(value.toTensor()));
    if (value.isNone()) return add(std::optional<at::Tensor>());
    TORCH_CHECK_TYPE(value.isScalar(), cell_.name, ": ", next().name, " must be a number or a tensor, but is a ",
                     value.type()->repr_str());
    add(value.toScalar());
  }

  // Sets the options that all neurons share, and returns the call, which points to members of this object.
  const MultistepCall& finish(bool detach_reset, std::string_view surrogate, c10::ArrayRef<double> surrogate_args,
                              bool spiking, bool store_v, std::int64_t bits, const std::optional<at::Tensor>& lengths,
                              const std::optional<at::Tensor>& start) {
    if (bits != 0) check_bits(cell_.name.c_str(), bits);
    call_.form.detach_reset = detach_reset;
    call_.form.spiking = spiking;
    const Surrogate parsed = parse_surrogate(cell_.name.c_str(), surrogate, surrogate_args);
    call_.form.surrogate = parsed.kind;
    call_.surrogate_args = parsed.args;
    call_.store_states = store_v;
    call_.bits = bits;
    call_.states = {states_.data(), n_states_};
    call_.params = params_;
    call_.numbers = {numbers_.data(), n_params_};
    set_samples(call_, lengths, start);
    check_dense(call_);  // here, because the dispatcher has no kernel for other layouts
    return call_;
  }

 private:
  const CellParam& next() const { return cell_.params[n_params_]; }

  void add(at::Tensor tensor, double number) {
    if (tensor.defined()) {
      params_.resize(cell_.params.size());
      params_[n_params_] = std::move(tensor);
    }
    numbers_[n_params_++] = number;
  }

  double real(const at::Scalar& number) const {
    TORCH_CHECK_TYPE(number.isFloatingPoint() || number.isIntegral(/*includeBool=*/false), cell_.name, ": ",
                     next().name, " must be a real number, but is ", number.isBoolean() ? "a bool" : "complex");
    return number.toDouble();
  }

  static constexpr std::size_t most_params = 12;

  const PredefinedCell& cell_;
  MultistepCall call_;
  std::array<at::Tensor, 2> states_;
  std::size_t n_states_ = 0;
  std::array<double, most_params> numbers_{};
  std::size_t n_params_ = 0;
  c10::SmallVector<at::Tensor, most_params> params_;  // empty if all are scalars
};

// Returns the parameters of a call one by one, converted to the argument types of an overload.
class ParamsOf {
 public:
  explicit ParamsOf(const MultistepCall& call) : call_(call) {}

  template <class T> std::decay_t<T> next() {
    using Value = std::decay_t<T>;
    if constexpr (std::is_same_v<Value, bool>) {
      return call_.form.decay_input;
    } else {
      const std::size_t j = j_++;
      const bool is_soft = call_.cell->params[j].name == "v_reset" && !call_.form.hard_reset;
      if constexpr (std::is_same_v<Value, at::Tensor>) {
        return call_.param(j);
      } else if constexpr (std::is_same_v<Value, at::Scalar>) {
        return call_.numbers[j];
      } else if constexpr (std::is_same_v<Value, std::optional<at::Scalar>>) {
        return is_soft ? Value() : Value(call_.numbers[j]);
      } else {
        if (is_soft) return std::nullopt;
        return call_.param(j).defined() ? call_.param(j) : as_tensor(call_.numbers[j]);
      }
    }
  }

 private:
  // Converts a scalar to a 0-dimensional CPU tensor in the type in which the kernel computes.
  at::Tensor as_tensor(double number) const {
    return at::scalar_tensor(number, at::TensorOptions(state_type(call_.inputs[0].scalar_type())));
  }

  const MultistepCall& call_;
  std::size_t j_ = 0;
};

template <NeuronKind kind, class Overload, class Tensor = TensorParamTypes<kind>, class States = StateTypes<kind>,
          class Params = ParamTypes<kind, Overload>>
struct Public;

template <NeuronKind kind, class Overload, class... Tensor, class... State, class... Parameter>
struct Public<kind, Overload, Types<Tensor...>, Types<State...>, Types<Parameter...>> {
  using Results = std::tuple<at::Tensor, TensorFor<State>...>;

  template <Run run>
  static Results call(const at::Tensor& x, Tensor... tensors, State... states, Parameter... params, bool detach_reset,
                      std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool spiking, bool store_v,
                      std::int64_t bits, OptionalTensor lengths, OptionalTensor start) {
    PublicCall call(kind, x);
    (call.add_state(states), ...);
    (call.add(tensors), ...);
    (call.add(params), ...);
    MultistepResults results =
        run(call.finish(detach_reset, surrogate, surrogate_args, spiking, store_v, bits, lengths, start));
    return [&]<std::size_t... s>(std::index_sequence<s...>) {
      return Results(std::move(results.outputs[0]), std::move(results.states[s])...);
    }
    (std::index_sequence_for<State...>{});
  }

  using Signature = Results(const at::Tensor&, Tensor..., State..., Parameter..., bool, std::string_view,
                            c10::ArrayRef<double>, bool, bool, std::int64_t, OptionalTensor, OptionalTensor);

  static MultistepResults call_through(const MultistepCall& call) {
    static const auto op = lowered::find<Signature>(predefined_cell(kind).name, Overload::overload);
    ParamsOf params(call);
    // Braces guarantee the order of evaluation.
    const std::tuple<std::decay_t<Tensor>..., std::decay_t<Parameter>...> given{params.next<Tensor>()...,
                                                                                params.next<Parameter>()...};
    return [&]<std::size_t... w, std::size_t... s, std::size_t... j>(
        std::index_sequence<w...>, std::index_sequence<s...>, std::index_sequence<j...>) {
      Results results = op.call(call.inputs[0], std::get<w>(given)..., maybe(call.state(s))...,
                                std::get<sizeof...(Tensor) + j>(given)..., call.form.detach_reset,
                                name_of(call.form.surrogate), arguments_of(call), call.form.spiking, call.store_states,
                                call.bits, maybe(call.lengths), maybe(call.start));
      return MultistepResults{{std::move(std::get<0>(results))}, {std::move(std::get<1 + s>(results))...}, {}, {}};
    }
    (std::index_sequence_for<Tensor...>{}, std::index_sequence_for<State...>{},
     std::index_sequence_for<Parameter...>{});
  }

  // True if a call fits the overload of scalars: no parameter except those before the states is a tensor.
  static bool has_numbers(const MultistepCall& call) {
    for (std::size_t j = sizeof...(Tensor); j < call.cell->params.size(); ++j)
      if (call.param(j).defined()) return false;
    return true;
  }
};

// A call from C++ (kernels.cpp).
MultistepResults call_from_cpp(const MultistepCall& call);

// Calls the matching overload through the dispatcher.
inline MultistepResults call_public(const MultistepCall& call) {
  return with_kind(kind_of(call), [&]<NeuronKind kind>() {
    return Public<kind, OfNumbers>::has_numbers(call) ? Public<kind, OfNumbers>::call_through(call)
                                                      : Public<kind, OfTensors>::call_through(call);
  });
}

// True if the dispatcher considered all tensors of this call. It ignores arguments of type Any, even if only such a
// parameter is mapped or differentiated by a transform.
inline bool was_dispatched_by_all(const MultistepCall& call) {
  c10::DispatchKeySet seen = call.inputs[0].key_set(), requested;
  for (std::size_t s = 0; s < call.cell->states.size(); ++s)
    if (call.state(s).defined()) seen = seen | call.state(s).key_set();
  for (const at::Tensor* t : {&call.lengths, &call.start})
    if (t->defined()) seen = seen | t->key_set();
  for (const at::Tensor& param : call.params)
    if (param.defined()) requested = requested | param.key_set();
  return (requested - seen).empty();
}

// The kernel of the overload `any`.
template <Run run, NeuronKind kind> void call_any(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr std::size_t n_options = 8;
  const std::size_t n_arguments = op.schema().arguments().size();
  const c10::IValue* const arguments = stack->data() + (stack->size() - n_arguments);
  const c10::IValue* const options = arguments + (n_arguments - n_options);
  constexpr std::size_t n_tensors = tensor_count(kind);
  constexpr std::size_t n_states = state_count(kind);

  PublicCall call(kind, arguments[0].toTensor());
  const c10::IValue* next = arguments + 1;
  for (std::size_t i = 0; i < n_tensors; ++i) call.add((next++)->toTensor());
  for (std::size_t s = 0; s < n_states; ++s) call.add_state((next++)->toOptional<at::Tensor>());
  for (const NeuronParam& param : neuron_row(kind).params) {
    if (param.role == NeuronParam::decay_input)
      call.add((next++)->toBool());
    else
      call.add_any(*next++);
  }
  const std::vector<double> surrogate_args = options[2].toDoubleVector();
  const MultistepCall& finished = call.finish(options[0].toBool(), options[1].toStringView(), surrogate_args,
                                              options[3].toBool(), options[4].toBool(), options[5].toInt(),
                                              options[6].toOptional<at::Tensor>(), options[7].toOptional<at::Tensor>());
  MultistepResults results = was_dispatched_by_all(finished) ? run(finished) : call_public(finished);
  torch::jit::drop(*stack, n_arguments);
  stack->emplace_back(std::move(results.outputs[0]));
  for (at::Tensor& state : results.states) stack->emplace_back(std::move(state));
}

template <Run run> void register_any(torch::Library& library) {
  for_each_neuron([&]<NeuronKind kind>() {
    library.impl((predefined_cell(kind).name + ".any").c_str(),
                 torch::CppFunction::makeFromBoxedFunction<call_any<run, kind>>());
  });
}

// Registers all overloads of every public operator for the library's dispatch key.
template <Run run> void register_public(torch::Library& library) {
  register_any<run>(library);
  for_each_neuron([&]<NeuronKind kind>() {
    const std::string& name = predefined_cell(kind).name;
    library.impl(name.c_str(), TORCH_FN((Public<kind, OfNumbers>::template call<run>)));
    library.impl((name + ".tensor").c_str(), TORCH_FN((Public<kind, OfTensors>::template call<run>)));
  });
}

}  // namespace spikeforge::ops
