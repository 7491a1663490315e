#include "ops/common/library.h"
#include "ops/event/differentiation.h"
#include "ops/event/linear.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace spikeforge::ops::sparse {
namespace {

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
