// event_linear: events [..., in] times weight [in, out], plus bias [out]: the sum of the rows of active inputs, [...,
// out] in the weight's type. Rows of other inputs are not read into it.
//
// An entry x of `events` is an event where it is true, or x > 0; NaN is none. An event counts 1, or with `graded` x.
// int32 events are bits as pack_events makes them, [..., ceil(in / 32)]. Half types are summed in float32 and rounded
// once; the order of a sum is fixed. Gradients: of events grad weight^T, straight through; of weight what inputs
// counted times what arrived.
#include "ops/event/linear.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace spikeforge::ops::sparse {
namespace {

constexpr const char* op = "event_linear";

// events^T grad, over all leading dimensions.
at::Tensor event_linear_weight_grad(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded) {
  const char* const name = "event_linear_weight_grad";
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == (is_packed(x) ? (in + 31) / 32 : in), name,
                    ": events must have shape [..., in] with in = ", in, ", or that of its bits, but has ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(
      grad.dim() == x.dim() && grad.sym_sizes().slice(0, grad.dim() - 1) == x.sym_sizes().slice(0, x.dim() - 1), name,
      ": grad must have the leading dimensions of events, ", x.sym_sizes(), ", but has ", grad.sym_sizes());
  const at::Tensor active = is_packed(x) ? unpack(x, in) : x.gt(0);
  const auto type = grad.scalar_type();
  const at::Tensor counted = graded ? at::where(active, x.to(type), at::zeros({}, grad.options())) : active.to(type);
  c10::SymInt vectors = 1;
  for (std::int64_t d = 0; d < x.dim() - 1; ++d) vectors *= x.sym_size(d);
  return counted.reshape_symint({vectors, in}).t().matmul(grad.reshape_symint({vectors, grad.sym_size(-1)}));
}

at::Tensor event_linear_meta(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             bool graded) {
  check_linear(x, weight, bias, graded);
  return at::empty_symint(linear_sizes(x, weight), weight.options());
}

SPIKEFORGE_SCHEMAS(library) {
  library.def("event_linear(Tensor events, Tensor weight, Tensor? bias=None, *, bool graded=False) -> Tensor");
  library.def("event_linear_weight_grad(Tensor events, Tensor grad, SymInt in_features, bool graded) -> Tensor");
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("event_linear_weight_grad", TORCH_FN(event_linear_weight_grad));
}

SPIKEFORGE_KERNELS(Meta, library) { library.impl("event_linear", TORCH_FN(event_linear_meta)); }

}  // namespace

bool is_packed(const at::Tensor& x) { return x.scalar_type() == c10::ScalarType::Int; }

void check_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, bool graded) {
  const auto type = x.scalar_type();
  TORCH_CHECK_TYPE(
      x.layout() == c10::kStrided && (type == c10::ScalarType::Bool || is_packed(x) || is_supported(type)), op,
      ": events must be a dense bool, float16, bfloat16, float32 or float64 tensor, or int32 bits of pack_events, but "
      "is ",
      x.layout(), " ", type);
  TORCH_CHECK_VALUE(!is_packed(x) || !graded, op, ": bits have no value that `graded` could use");
  TORCH_CHECK_TYPE(weight.layout() == c10::kStrided && is_supported(weight.scalar_type()), op,
                   ": weight must be a dense float16, bfloat16, float32 or float64 tensor, but is ", weight.layout(),
                   " ", weight.scalar_type());
  TORCH_CHECK_VALUE(weight.dim() == 2, op, ": weight must have shape [in, out], but has ", weight.sym_sizes());
  const c10::SymInt in = weight.sym_size(0);
  if (is_packed(x)) {
    TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == (in + 31) / 32, op,
                      ": events, as bits, must have shape [..., ceil(in / 32)] with in = ", in,
                      ", the rows of weight, ", "but has ", x.sym_sizes());
  } else {
    TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == in, op, ": events must have shape [..., in] with in = ", in,
                      ", the rows of weight, but has ", x.sym_sizes());
  }
  TORCH_CHECK_VALUE(weight.device() == x.device(), op, ": weight must be on ", x.device(),
                    ", the device of events, but is on ", weight.device());
  if (!bias.has_value()) return;
  TORCH_CHECK_TYPE(bias->scalar_type() == weight.scalar_type(), op, ": bias must be ", weight.scalar_type(),
                   ", as weight, but is ", bias->scalar_type());
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->sym_size(0) == weight.sym_size(1), op, ": bias must have shape [out] = [",
                    weight.sym_size(1), "], but has ", bias->sym_sizes());
  TORCH_CHECK_VALUE(bias->device() == x.device(), op, ": bias must be on ", x.device(),
                    ", the device of events, but is on ", bias->device());
}

event::KernelSpec gpu_linear(const at::Tensor& x, const at::Tensor& weight, bool graded) {
  return {.kernel = event::Kernel::linear,
          .weight = dtype_of(weight.scalar_type()),
          .entry = is_packed(x) ? event::EntryType::boolean : entry_type_of(x.scalar_type()),
          .values = graded ? Values::graded : Values::event,
          .packed = is_packed(x)};
}

c10::SymDimVector linear_sizes(const at::Tensor& x, const at::Tensor& weight) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  sizes.back() = weight.sym_size(1);
  return sizes;
}

at::Tensor call_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       bool graded) {
  static const auto handle = find_operator<decltype(call_linear)>("spikeforge::event_linear");
  return handle.call(x, weight, bias, graded);
}

at::Tensor call_linear_weight_grad(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded) {
  static const auto handle = find_operator<decltype(call_linear_weight_grad)>("spikeforge::event_linear_weight_grad");
  return handle.call(x, grad, std::move(in), graded);
}

namespace {

// ---- gradients ----

struct LinearRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& grad = grads[0];
    const bool has_bias = ctx->saved_data.at("has_bias").toBool();
    at::Tensor grad_x, grad_weight, grad_bias;
    if (ctx->needs_input_grad(0)) grad_x = grad.matmul(weight.t()).to(x.scalar_type());
    if (ctx->needs_input_grad(1))
      grad_weight = call_linear_weight_grad(x, grad, weight.sym_size(0), ctx->saved_data.at("graded").toBool());
    if (has_bias && ctx->needs_input_grad(2)) grad_bias = grad.sum_to_size_symint({grad.sym_size(-1)});
    return {grad_x, grad_weight, grad_bias};
  }
};

at::Tensor event_linear_autograd(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                 bool graded) {
  const bool has_bias = bias.has_value() && bias->defined();
  TORCH_CHECK_VALUE(!has_bias || bias->dim() == 1, "event_linear: bias must have shape [out], but has ",
                    bias->sym_sizes());
  variable_list inputs{x, weight};
  if (has_bias) inputs.push_back(*bias);
  return differentiable<LinearRule>(
      "event_linear", inputs, [&] { return call_linear(x, weight, bias, graded); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward({x, weight});
        ctx->saved_data["graded"] = graded;
        ctx->saved_data["has_bias"] = has_bias;
      });
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("event_linear", TORCH_FN(event_linear_autograd));
  library.impl("event_linear_weight_grad", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::sparse
