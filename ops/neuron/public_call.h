// The public operators' C++ signatures. Each has two overloads, of numbers and of tensors, both written here once and
// lowered to one NeuronArguments; `run` is what happens next: with autograd, or without.
#pragma once

#include <spikeforge/ops/neuron/arguments.h>

#include <c10/core/Scalar.h>

#include <tuple>
#include <utility>

namespace spikeforge::ops {

using at::Scalar;
using at::Tensor;
using std::optional;

using Run = ForwardResults (*)(const NeuronArguments&);

// The options that all neurons share, at the end of every signature.
struct CommonOptions {
  bool detach_reset;
  std::string_view surrogate;
  c10::ArrayRef<double> surrogate_args;
  bool spiking;
  bool store_v;
};

// Collects a call's parameters in their order. A number is checked here; a tensor's values are not read.
class PublicCall {
 public:
  PublicCall(NeuronKind kind, const Tensor& x, const std::array<optional<Tensor>, max_states>& states,
             const CommonOptions& common)
      : neuron_(describe(kind)) {
    // Here already: the dispatcher has no kernel for other layouts to say it.
    TORCH_CHECK_TYPE(x.layout() == c10::kStrided, neuron_.name, ": x must be a dense tensor, but its layout is ",
                     x.layout(), "; pass x.to_dense()");
    args_.kind = kind;
    args_.x = x;
    args_.states = states;
    args_.options.detach_reset = common.detach_reset;
    args_.options.spiking = common.spiking;
    args_.surrogate = common.surrogate;
    args_.surrogate_args = common.surrogate_args;
    args_.store_v = common.store_v;
  }

  PublicCall& decay_input(bool value) {
    args_.options.decay_input = value;
    return *this;
  }

  PublicCall& param(const Scalar& number) { return add(std::nullopt, checked(number)); }

  PublicCall& param(const Tensor& tensor) { return add(tensor, 0); }

  // None is the default, which is a number.
  PublicCall& param(const optional<Tensor>& tensor) { return add(tensor, next().default_value); }

  // None is soft reset.
  PublicCall& v_reset(const optional<Scalar>& number) {
    args_.options.hard_reset = number.has_value();
    return add(std::nullopt, number.has_value() ? checked(*number) : 0);
  }

  PublicCall& v_reset(const optional<Tensor>& tensor) {
    args_.options.hard_reset = tensor.has_value();
    return add(tensor, 0);
  }

  const NeuronArguments& arguments() {
    args_.numbers = {numbers_.data(), n_params_};
    args_.params = no_tensors(n_params_);
    if (any_tensor_) args_.params = OptionalTensorList(c10::ArrayRef(tensors_.data(), n_params_));
    return args_;
  }

 private:
  const ParamDescription& next() const { return neuron_.params[n_params_]; }

  PublicCall& add(optional<Tensor> tensor, double number) {
    any_tensor_ = any_tensor_ || tensor.has_value();
    numbers_[n_params_] = number;
    tensors_[n_params_++] = std::move(tensor);
    return *this;
  }

  double checked(const Scalar& number) const {
    TORCH_CHECK_TYPE(number.isFloatingPoint() || number.isIntegral(/*includeBool=*/false), neuron_.name, ": ",
                     next().name, " must be a real number, but is ", number.isBoolean() ? "a bool" : "complex");
    const double value = number.toDouble();
    if (next().legal == Legal::positive) check_positive(neuron_.name, next().name, value);
    return value;
  }

  const NeuronDescription& neuron_;
  NeuronArguments args_;
  std::array<double, max_params> numbers_{};
  std::array<optional<Tensor>, max_params> tensors_;
  std::size_t n_params_ = 0;
  bool any_tensor_ = false;
};

namespace public_op {

using OneState = std::tuple<Tensor, Tensor>;
using TwoStates = std::tuple<Tensor, Tensor, Tensor>;

inline OneState one_state(ForwardResults results) { return {std::move(results.spikes), std::move(results.states[0])}; }

// Number is Scalar or optional<Tensor>; Reset is optional<Scalar> or optional<Tensor>.
template <Run run, class Number, class Reset>
OneState integrate_and_fire(const Tensor& x, const optional<Tensor>& v, const Number& v_threshold, const Reset& v_reset,
                            bool detach_reset, std::string_view surrogate, c10::ArrayRef<double> surrogate_args,
                            bool spiking, bool store_v) {
  PublicCall call(NeuronKind::integrate_and_fire, x, {v}, {detach_reset, surrogate, surrogate_args, spiking, store_v});
  return one_state(run(call.param(v_threshold).v_reset(v_reset).arguments()));
}

template <Run run, class Number, class Reset>
OneState lif(const Tensor& x, const optional<Tensor>& v, const Number& tau, bool decay_input, const Number& v_threshold,
             const Reset& v_reset, bool detach_reset, std::string_view surrogate, c10::ArrayRef<double> surrogate_args,
             bool spiking, bool store_v) {
  PublicCall call(NeuronKind::lif, x, {v}, {detach_reset, surrogate, surrogate_args, spiking, store_v});
  return one_state(run(call.decay_input(decay_input).param(tau).param(v_threshold).v_reset(v_reset).arguments()));
}

template <Run run, class Number, class Reset>
OneState plif(const Tensor& x, const Tensor& w, const optional<Tensor>& v, bool decay_input, const Number& v_threshold,
              const Reset& v_reset, bool detach_reset, std::string_view surrogate, c10::ArrayRef<double> surrogate_args,
              bool spiking, bool store_v) {
  PublicCall call(NeuronKind::plif, x, {v}, {detach_reset, surrogate, surrogate_args, spiking, store_v});
  return one_state(run(call.decay_input(decay_input).param(w).param(v_threshold).v_reset(v_reset).arguments()));
}

template <Run run, class Number, class Reset>
OneState qif(const Tensor& x, const optional<Tensor>& v, const Number& tau, const Number& v_c, const Number& a0,
             const Number& v_threshold, const Number& v_rest, const Reset& v_reset, bool detach_reset,
             std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool spiking, bool store_v) {
  PublicCall call(NeuronKind::qif, x, {v}, {detach_reset, surrogate, surrogate_args, spiking, store_v});
  call.param(tau).param(v_c).param(a0).param(v_threshold).param(v_rest).v_reset(v_reset);
  return one_state(run(call.arguments()));
}

template <Run run, class Number, class Reset>
OneState eif(const Tensor& x, const optional<Tensor>& v, const Number& tau, const Number& delta_t,
             const Number& theta_rh, const Number& v_threshold, const Number& v_rest, const Reset& v_reset,
             bool detach_reset, std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool spiking,
             bool store_v) {
  PublicCall call(NeuronKind::eif, x, {v}, {detach_reset, surrogate, surrogate_args, spiking, store_v});
  call.param(tau).param(delta_t).param(theta_rh).param(v_threshold).param(v_rest).v_reset(v_reset);
  return one_state(run(call.arguments()));
}

template <Run run, class Number, class Reset>
TwoStates izhikevich(const Tensor& x, const optional<Tensor>& v, const optional<Tensor>& w, const Number& tau,
                     const Number& v_c, const Number& a0, const Number& v_threshold, const Number& v_rest,
                     const Number& w_rest, const Reset& v_reset, const Number& tau_w, const Number& a, const Number& b,
                     bool detach_reset, std::string_view surrogate, c10::ArrayRef<double> surrogate_args, bool spiking,
                     bool store_v) {
  PublicCall call(NeuronKind::izhikevich, x, {v, w}, {detach_reset, surrogate, surrogate_args, spiking, store_v});
  call.param(tau)
      .param(v_c)
      .param(a0)
      .param(v_threshold)
      .param(v_rest)
      .param(w_rest)
      .v_reset(v_reset)
      .param(tau_w)
      .param(a)
      .param(b);
  ForwardResults results = run(call.arguments());
  return {std::move(results.spikes), std::move(results.states[0]), std::move(results.states[1])};
}

}  // namespace public_op

// Both overloads of every public operator, under the library's dispatch key.
#define SPIKEFORGE_IMPL_PUBLIC(library, name, run)                                                                     \
  library.impl(#name, TORCH_FN((::spikeforge::ops::public_op::name<run, ::at::Scalar, std::optional<::at::Scalar>>))); \
  library.impl(                                                                                                        \
      #name ".tensor",                                                                                                 \
      TORCH_FN((::spikeforge::ops::public_op::name<run, std::optional<::at::Tensor>, std::optional<::at::Tensor>>)))

template <Run run, class Library>
void register_public(Library& library) {
#define SPIKEFORGE_NEURON(name, Struct, header) SPIKEFORGE_IMPL_PUBLIC(library, name, run);
#include <spikeforge/neuron/neurons.def>
#undef SPIKEFORGE_NEURON
}

#undef SPIKEFORGE_IMPL_PUBLIC

}  // namespace spikeforge::ops
