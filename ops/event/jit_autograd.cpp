// Gradients of products with a matrix that is drawn: of the entries, the product of the upstream gradient with the
// other order; of the law's numbers, in which a weight is linear, products with the unit weights (1, 0) and (0, 1).
// Both are the operator itself, so that a second derivative is right as well.
#include <spikeforge/ops/event/differentiation.h>
#include <spikeforge/ops/event/jit.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/functorch.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

namespace spikeforge::ops::sparse {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor gradient_of_weights(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& grad, const Form& form,
                               const Draw& draw) {
  const auto type = state_type(weights.scalar_type());
  const at::Tensor units = at::eye(draw.law == Law::constant ? 1 : 2, weights.options().dtype(type));
  std::vector<at::Tensor> sums;
  for (const at::Tensor& unit : units.unbind()) sums.push_back(call_jit(unit, x, form, draw).mul(grad.to(type)).sum());
  return at::stack(sums).to(weights.scalar_type());
}

class JitFunction : public torch::autograd::Function<JitFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weights, const at::Tensor& x, const Form& form,
                            const Draw& draw) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor y = call_jit(weights, x, form, draw);
    ctx->save_for_backward({weights, x});
    save_form(ctx, form);
    ctx->saved_data["prob"] = draw.prob;
    ctx->saved_data["seed"] = draw.seed;
    ctx->saved_data["law"] = static_cast<std::int64_t>(draw.law);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Form form = saved_form(ctx);
    const auto& data = ctx->saved_data;
    const Draw draw{data.at("prob").toDouble(), data.at("seed").toInt(), static_cast<Law>(data.at("law").toInt())};
    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0)) grad_weights = gradient_of_weights(saved[0], saved[1], grads[0], form, draw);
    if (ctx->needs_input_grad(1))
      grad_x = call_jit(saved[0], grads[0], transposed(form), draw).to(saved[1].scalar_type());
    return {grad_weights, grad_x, {}, {}};
  }
};

at::Tensor jit_product_autograd(const at::Tensor& weights, const at::Tensor& x, c10::SymInt rows, c10::SymInt cols,
                                double prob, std::int64_t seed, c10::string_view law, bool transpose, bool matrix,
                                c10::string_view values, bool deterministic) {
  const auto [form, draw] =
      parse_jit(std::move(rows), std::move(cols), prob, seed, law, transpose, matrix, values, deterministic);
  refuse_functorch(jit_name(matrix));
  if (is_differentiated(weights) || is_differentiated(x)) return JitFunction::apply(weights, x, form, draw);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_jit(weights, x, form, draw);
}

TORCH_LIBRARY_IMPL(spikeforge, Autograd, library) { library.impl("jit_product", TORCH_FN(jit_product_autograd)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
