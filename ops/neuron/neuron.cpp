// The operators below autograd, and the C++ functions, which call through the dispatcher.
#include <spikeforge/ops/neuron.h>
#include <spikeforge/ops/neuron/layout.h>
#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/public_call.h>

#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

namespace spikeforge {
namespace ops {
namespace {

// Nothing will be differentiated, so nothing is saved.
ForwardResults run_inference(const NeuronArguments& args) { return call_forward(args, /*save=*/false); }

TORCH_LIBRARY_IMPL(spikeforge, CompositeExplicitAutograd, library) { register_public<run_inference>(library); }

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, const char* overload, Signature*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

// Numbers are checked by the operator, but not once they are tensors.
void check_positive_number(const char* op, const char* name, const Param& param) {
  if (!param.is_tensor()) check_positive(op, name, param.number());
}

void check_defined(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK_VALUE(t.defined(), op, ": ", name, " is an undefined tensor");
}

// Parameters as one overload takes them: the one of numbers where there is no tensor among them.
struct AsNumbers {
  Scalar operator()(const Param& param) const { return param.number(); }
  optional<Scalar> operator()(const optional<Param>& param) const {
    return param ? optional<Scalar>(param->number()) : std::nullopt;
  }
};

struct AsTensors {
  const char* op;
  const Tensor& x;

  // A number beside tensors goes as a 0-dimensional tensor on the host, in the type that the kernel computes in.
  optional<Tensor> operator()(const Param& param) const {
    if (param.is_tensor()) {
      check_defined(op, "a parameter", param.tensor());
      return param.tensor();
    }
    return at::scalar_tensor(param.number(),
                             at::TensorOptions(scalar_type_of(compute_type(dtype_of(x.scalar_type())))));
  }
  optional<Tensor> operator()(const optional<Param>& param) const { return param ? (*this)(*param) : std::nullopt; }
};

template <class... Params>
bool any_tensor(const optional<Param>& v_reset, const Params&... params) {
  return (params.is_tensor() || ... || (v_reset.has_value() && v_reset->is_tensor()));
}

}  // namespace
}  // namespace ops

// Calls the overload that fits: `as(param)` gives a parameter in its form, `op` is its handle.
#define SPIKEFORGE_CALL_OVERLOAD(name, has_tensors, ...)                                                              \
  ops::check_defined(#name, "x", x);                                                                                  \
  if (has_tensors) {                                                                                                  \
    static const auto op = ops::find("spikeforge::" #name, "tensor",                                                  \
                                     &ops::public_op::name<ops::run_inference, MaybeTensor, MaybeTensor>);            \
    const ops::AsTensors as{#name, x};                                                                                \
    return op.call(__VA_ARGS__);                                                                                      \
  }                                                                                                                   \
  static const auto op = ops::find("spikeforge::" #name, "",                                                          \
                                   &ops::public_op::name<ops::run_inference, at::Scalar, std::optional<at::Scalar>>); \
  const ops::AsNumbers as;                                                                                            \
  return op.call(__VA_ARGS__)

std::tuple<at::Tensor, at::Tensor> integrate_and_fire(const at::Tensor& x, const MaybeTensor& v, const IfOptions& o) {
  SPIKEFORGE_CALL_OVERLOAD(integrate_and_fire, ops::any_tensor(o.v_reset, o.v_threshold), x, v, as(o.v_threshold),
                           as(o.v_reset), o.detach_reset, o.surrogate, o.surrogate_args, o.spiking, o.store_v);
}

std::tuple<at::Tensor, at::Tensor> lif(const at::Tensor& x, const MaybeTensor& v, const LifOptions& o) {
  ops::check_positive_number("lif", "tau", o.tau);
  SPIKEFORGE_CALL_OVERLOAD(lif, ops::any_tensor(o.v_reset, o.tau, o.v_threshold), x, v, as(o.tau), o.decay_input,
                           as(o.v_threshold), as(o.v_reset), o.detach_reset, o.surrogate, o.surrogate_args, o.spiking,
                           o.store_v);
}

std::tuple<at::Tensor, at::Tensor> plif(const at::Tensor& x, const at::Tensor& w, const MaybeTensor& v,
                                        const PlifOptions& o) {
  ops::check_defined("plif", "w", w);
  SPIKEFORGE_CALL_OVERLOAD(plif, ops::any_tensor(o.v_reset, o.v_threshold), x, w, v, o.decay_input, as(o.v_threshold),
                           as(o.v_reset), o.detach_reset, o.surrogate, o.surrogate_args, o.spiking, o.store_v);
}

std::tuple<at::Tensor, at::Tensor> qif(const at::Tensor& x, const MaybeTensor& v, const QifOptions& o) {
  ops::check_positive_number("qif", "tau", o.tau);
  SPIKEFORGE_CALL_OVERLOAD(qif, ops::any_tensor(o.v_reset, o.tau, o.v_c, o.a0, o.v_threshold, o.v_rest), x, v,
                           as(o.tau), as(o.v_c), as(o.a0), as(o.v_threshold), as(o.v_rest), as(o.v_reset),
                           o.detach_reset, o.surrogate, o.surrogate_args, o.spiking, o.store_v);
}

std::tuple<at::Tensor, at::Tensor> eif(const at::Tensor& x, const MaybeTensor& v, const EifOptions& o) {
  ops::check_positive_number("eif", "tau", o.tau);
  ops::check_positive_number("eif", "delta_t", o.delta_t);
  SPIKEFORGE_CALL_OVERLOAD(eif, ops::any_tensor(o.v_reset, o.tau, o.delta_t, o.theta_rh, o.v_threshold, o.v_rest), x, v,
                           as(o.tau), as(o.delta_t), as(o.theta_rh), as(o.v_threshold), as(o.v_rest), as(o.v_reset),
                           o.detach_reset, o.surrogate, o.surrogate_args, o.spiking, o.store_v);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> izhikevich(const at::Tensor& x, const MaybeTensor& v,
                                                          const MaybeTensor& w, const IzhikevichOptions& o) {
  ops::check_positive_number("izhikevich", "tau", o.tau);
  ops::check_positive_number("izhikevich", "tau_w", o.tau_w);
  SPIKEFORGE_CALL_OVERLOAD(
      izhikevich, ops::any_tensor(o.v_reset, o.tau, o.v_c, o.a0, o.v_threshold, o.v_rest, o.w_rest, o.tau_w, o.a, o.b),
      x, v, w, as(o.tau), as(o.v_c), as(o.a0), as(o.v_threshold), as(o.v_rest), as(o.w_rest), as(o.v_reset),
      as(o.tau_w), as(o.a), as(o.b), o.detach_reset, o.surrogate, o.surrogate_args, o.spiking, o.store_v);
}

#undef SPIKEFORGE_CALL_OVERLOAD

}  // namespace spikeforge
