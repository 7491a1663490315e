// Gradients of products with a matrix that is drawn: of the entries, the product of the upstream gradient with the
// other order; of the distribution's numbers, in which a weight is linear, products with the unit weights (1, 0) and
// (0, 1). Both are the operator itself, so that a second derivative is right as well.
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"
#include "ops/event/jit.h"

namespace spikeforge::ops::sparse {
namespace {

at::Tensor gradient_of_weights(const JitCall& call, const at::Tensor& grad) {
  return sums_of_units(call.draw, grad.to(state_type(call.weights.scalar_type())),
                       [&](const at::Tensor& unit) {
                         return call_jit({unit, call.x, call.options, call.draw});
                       })
      .to(call.weights.scalar_type());
}

struct JitRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const JitCall call{saved[0], saved[1], saved_options(ctx), saved_draw(ctx)};
    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0)) grad_weights = gradient_of_weights(call, grads[0]);
    if (ctx->needs_input_grad(1))
      grad_x = call_jit({call.weights, grads[0], transposed(call.options), call.draw}).to(call.x.scalar_type());
    return {grad_weights, grad_x};
  }
};

at::Tensor jit_product_autograd(const JitCall& call) {
  return differentiable<JitRule>(
      jit_name(call.options.matrix), {call.weights, call.x}, [&] { return call_jit(call); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward({call.weights, call.x});
        save_options(ctx, call.options);
        save_draw(ctx, call.draw);
      });
}

SPIKEFORGE_KERNELS(Autograd, library) { library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_autograd>)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
