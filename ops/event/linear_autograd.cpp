#include <spikeforge/ops/common/functorch.h>
#include <spikeforge/ops/event/differentiation.h>
#include <spikeforge/ops/event/linear.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            bool graded) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    // Without a bias it is of no dimension: apply() takes no undefined tensor.
    at::Tensor y = call_linear(x, weight, bias.dim() == 1 ? std::optional(bias) : std::nullopt, graded);
    ctx->save_for_backward({x, weight});
    ctx->saved_data["graded"] = graded;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& grad = grads[0];
    at::Tensor grad_x, grad_weight, grad_bias;
    if (ctx->needs_input_grad(0)) grad_x = grad.matmul(weight.t()).to(x.scalar_type());
    if (ctx->needs_input_grad(1))
      grad_weight = call_linear_weight_grad(x, grad, weight.sym_size(0), ctx->saved_data.at("graded").toBool());
    if (ctx->needs_input_grad(2)) grad_bias = grad.sum_to_size_symint({grad.sym_size(-1)});
    return {grad_x, grad_weight, grad_bias, {}};
  }
};

at::Tensor event_linear_autograd(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                 bool graded) {
  refuse_functorch("event_linear");
  TORCH_CHECK_VALUE(!bias.has_value() || bias->dim() == 1, "event_linear: bias must have shape [out], but has ",
                    bias->sym_sizes());
  if (is_differentiated(x) || is_differentiated(weight) || (bias.has_value() && is_differentiated(*bias)))
    return LinearFunction::apply(x, weight, bias.has_value() ? *bias : at::empty({}, weight.options()), graded);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_linear(x, weight, bias, graded);
}

TORCH_LIBRARY_IMPL(spikeforge, Autograd, library) {
  library.impl("event_linear", TORCH_FN(event_linear_autograd));
  library.impl("event_linear_weight_grad", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::sparse
