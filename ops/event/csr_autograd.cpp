// Gradients of products with stored matrices. By the entries: the product of the upstream gradient with the transposed
// matrix, for events as for numbers (straight-through, also without an event). By a weight: the input of its nonzero,
// times the upstream gradient of its output. Both are registered operators, so that a second derivative is right as
// well.
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"

#include <ATen/ops/ones.h>

namespace spikeforge::ops::sparse {
namespace {

// Two tensors of a call, its matrix and options, as autograd keeps them.
class Saved {
 public:
  template <class Call>
  static void keep(AutogradContext* ctx, const at::Tensor& first, const at::Tensor& second, const Call& call) {
    ctx->save_for_backward({first, second, call.indices, call.indptr.value_or(at::Tensor())});
    save_options(ctx, call.options);
  }

  explicit Saved(AutogradContext* ctx) : tensors_(ctx->get_saved_variables()), options_(saved_options(ctx)) {
    if (tensors_[3].defined()) indptr_ = tensors_[3];
  }

  at::Tensor product(const at::Tensor& weights, const at::Tensor& x) const {
    return call_product({weights, tensors_[2], indptr_, x, options_});
  }
  // By the entries x of a product: the product with the transposed matrix.
  at::Tensor grad_x(const at::Tensor& weights, const at::Tensor& grad, const at::Tensor& x) const {
    return call_product({weights, tensors_[2], indptr_, grad, transposed(options_)}).to(x.scalar_type());
  }
  at::Tensor grad_weights(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& grad) const {
    if (weights.sym_numel() != 1) return call_weight_grad({x, grad, tensors_[2], indptr_, options_});
    // All nonzeros have one weight, so its gradient is the sum of grad times the result for a weight of one.
    const auto type = state_type(weights.scalar_type());
    const at::Tensor unweighted = product(at::ones({1}, weights.options().dtype(type)), x);
    return unweighted.mul(grad.to(type)).sum().to(weights.scalar_type()).view_symint(weights.sym_sizes());
  }

  const at::Tensor& first() const { return tensors_[0]; }
  const at::Tensor& second() const { return tensors_[1]; }

 private:
  const variable_list tensors_;
  const Options options_;
  std::optional<at::Tensor> indptr_;
};

struct ProductRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Saved saved(ctx);
    const at::Tensor &weights = saved.first(), &x = saved.second();
    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0)) grad_weights = saved.grad_weights(weights, x, grads[0]);
    if (ctx->needs_input_grad(1)) grad_x = saved.grad_x(weights, grads[0], x);
    return {grad_weights, grad_x};
  }
};

struct WeightGradRule {
  static constexpr bool is_traceable = true;

  // The rule is linear in the upstream gradient and (straight-through) in the entries. grads[0] has the shape of the
  // weights.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Saved saved(ctx);
    const at::Tensor &x = saved.first(), &grad = saved.second();
    at::Tensor grad_x, grad_grad;
    if (ctx->needs_input_grad(0)) grad_x = saved.grad_x(grads[0], grad, x);
    if (ctx->needs_input_grad(1)) grad_grad = saved.product(grads[0], x);
    return {grad_x, grad_grad};
  }
};

at::Tensor product_autograd(const ProductCall& call) {
  return differentiable<ProductRule>(
      call.name(), {call.weights, call.x}, [&] { return call_product(call); },
      [&](AutogradContext* ctx) { Saved::keep(ctx, call.weights, call.x, call); });
}

at::Tensor weight_grad_autograd(const WeightGradCall& call) {
  return differentiable<WeightGradRule>(
      "csr_weight_grad", {call.x, call.grad}, [&] { return call_weight_grad(call); },
      [&](AutogradContext* ctx) { Saved::keep(ctx, call.x, call.grad, call); });
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_autograd>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_autograd>));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
