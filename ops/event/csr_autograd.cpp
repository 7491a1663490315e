// Gradients of products with stored matrices. By the entries: the product of the upstream gradient with the transposed
// matrix, for events as for numbers (straight-through, also where there was no event). By a weight: what its connection
// read, times the upstream gradient of where it went. Both are registered operators, so that a second derivative is
// right as well.
#include <spikeforge/ops/event/differentiation.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/functorch.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

namespace spikeforge::ops::sparse {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Matrix {
  const at::Tensor& indices;
  const std::optional<at::Tensor>& indptr;
};

variable_list to_save(const at::Tensor& first, const at::Tensor& second, const Matrix& matrix) {
  return {first, second, matrix.indices, matrix.indptr.has_value() ? *matrix.indptr : at::Tensor()};
}

std::optional<at::Tensor> maybe(const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

// All connections have one weight: the sum over what each would get is that over the results of a weight of one.
at::Tensor gradient_of_shared(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& grad,
                              const Matrix& matrix, const Form& form) {
  const auto type = state_type(weight.scalar_type());
  const at::Tensor one = at::ones({1}, weight.options().dtype(type));
  const at::Tensor unweighted = call_product(one, matrix.indices, matrix.indptr, x, form);
  return unweighted.mul(grad.to(type)).sum().to(weight.scalar_type()).view_symint(weight.sym_sizes());
}

class ProductFunction : public torch::autograd::Function<ProductFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weights, const at::Tensor& x, const Matrix& matrix,
                            const Form& form) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor y = call_product(weights, matrix.indices, matrix.indptr, x, form);
    ctx->save_for_backward(to_save(weights, x, matrix));
    save_form(ctx, form);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weights = saved[0];
    const at::Tensor& x = saved[1];
    const std::optional<at::Tensor> indptr = maybe(saved[3]);
    const Matrix matrix{saved[2], indptr};
    const Form form = saved_form(ctx);
    const at::Tensor& grad = grads[0];

    at::Tensor grad_weights, grad_x;
    if (ctx->needs_input_grad(0))
      grad_weights = weights.sym_numel() == 1 ? gradient_of_shared(weights, x, grad, matrix, form)
                                              : call_weight_grad(x, grad, matrix.indices, matrix.indptr, form);
    if (ctx->needs_input_grad(1))
      grad_x = call_product(weights, matrix.indices, matrix.indptr, grad, transposed(form)).to(x.scalar_type());
    return {grad_weights, grad_x, {}, {}};
  }
};

class WeightGradFunction : public torch::autograd::Function<WeightGradFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& grad, const Matrix& matrix,
                            const Form& form) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor result = call_weight_grad(x, grad, matrix.indices, matrix.indptr, form);
    ctx->save_for_backward(to_save(x, grad, matrix));
    save_form(ctx, form);
    return result;
  }

  // It is linear in the upstream gradient and, straight through, in the entries: what comes is weights.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& grad = saved[1];
    const std::optional<at::Tensor> indptr = maybe(saved[3]);
    const Form form = saved_form(ctx);

    at::Tensor grad_x, grad_grad;
    if (ctx->needs_input_grad(0))
      grad_x = call_product(grads[0], saved[2], indptr, grad, transposed(form)).to(x.scalar_type());
    if (ctx->needs_input_grad(1)) grad_grad = call_product(grads[0], saved[2], indptr, x, form);
    return {grad_x, grad_grad, {}, {}};
  }
};

at::Tensor product_autograd(const at::Tensor& weights, const at::Tensor& indices,
                            const std::optional<at::Tensor>& indptr, const at::Tensor& x, c10::SymInt rows,
                            c10::SymInt cols, bool transpose, bool matrix, c10::string_view values,
                            bool deterministic) {
  const Form form{std::move(rows), std::move(cols), transpose, matrix, parse_values(values), deterministic};
  refuse_functorch(operator_name(form, !indptr.has_value()));
  if (is_differentiated(weights) || is_differentiated(x))
    return ProductFunction::apply(weights, x, Matrix{indices, indptr}, form);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_product(weights, indices, indptr, x, form);
}

at::Tensor weight_grad_autograd(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                                const std::optional<at::Tensor>& indptr, c10::SymInt rows, c10::SymInt cols,
                                bool transpose, bool matrix, c10::string_view values) {
  const Form form{std::move(rows), std::move(cols), transpose, matrix, parse_values(values), false};
  if (is_differentiated(x) || is_differentiated(grad))
    return WeightGradFunction::apply(x, grad, Matrix{indices, indptr}, form);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_weight_grad(x, grad, indices, indptr, form);
}

TORCH_LIBRARY_IMPL(spikeforge, Autograd, library) {
  library.impl("csr_product", TORCH_FN(product_autograd));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_autograd));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
