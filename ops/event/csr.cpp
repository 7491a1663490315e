// The public operators of stored matrices: all of them are one product, csr_product.
//
// A matrix consists of indices, int32 [connections], the columns row by row, and indptr, int32 or int64 [rows + 1]: the
// connections of row i are indptr[i] up to indptr[i + 1]. Columns of a row may come in any order and more than once; a
// row may be empty. In the ELL form, all rows have the same number: indices [rows, connections per row] and no indptr.
// weights has one value per connection (the shape of indices), or one element for all. The first call checks the
// indices of a matrix and throws if one is out of range; later calls use the stored result (ops/common/verified.h).
// `unchecked` skips the check: an index out of range then reads or writes memory out of bounds.
//
// An entry x of `events` is an event if it is true, or x > 0; NaN is not an event. An event counts 1, or with `graded`
// x. The result is A e, or with `transpose` e A, in the weights' type; sums of half types are in float32 and rounded
// once. Weights of entries without an event have no influence, even if they are NaN or infinite. csrmv and csrmm count
// every entry with its value.
//
// events are [..., cols] for mv and [..., cols, n] for mm, with rows in place of cols under transpose; the result is
// [..., rows] and [..., rows, n], or cols. `deterministic` (or torch.use_deterministic_algorithms) gives the same bits
// in every run on a GPU too.
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/event/differentiation.h"
#include "ops/event/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

namespace spikeforge::ops::sparse {
namespace {

Values values_of() { return Values::number; }
Values values_of(bool graded) { return event_values(graded); }

// Graded is bool for operators of events.
template <bool matrix, class... Graded> struct Operator {
  static at::Tensor csr(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& indptr,
                        const at::Tensor& x, c10::SymInt rows, c10::SymInt cols, bool transpose, Graded... graded,
                        bool deterministic, bool unchecked) {
    return product_kernel<call_product>(weights, indices, indptr, x, std::move(rows), std::move(cols), transpose,
                                        matrix, name_of(values_of(graded...)), deterministic, unchecked);
  }
  static at::Tensor ell(const at::Tensor& weights, const at::Tensor& indices, const at::Tensor& x, c10::SymInt cols,
                        bool transpose, Graded... graded, bool deterministic, bool unchecked) {
    return product_kernel<call_product>(weights, indices, std::nullopt, x, ell_rows(indices), std::move(cols),
                                        transpose, matrix, name_of(values_of(graded...)), deterministic, unchecked);
  }
};

at::Tensor product_meta(const ProductCall& call) {
  check_product(call);
  return at::empty_symint(result_sizes(call.x, call.options), call.weights.options());
}

at::Tensor weight_grad_meta(const WeightGradCall& call) {
  check_weight_grad(call);
  return at::empty_symint(call.indices.sym_sizes(), call.grad.options());
}

// csr_check: checks the conditions that kernels require of a matrix, with error messages. The result is remembered for
// later calls. Checks the matrix, through a copy if it is on a GPU.
void csr_check(const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows, std::int64_t cols, bool sorted) {
  check_matrix("csr_check", indices, indptr, rows, cols);
  check_numbers({.op = "csr_check", .indices = &indices, .indptr = &indptr, .rows = rows, .cols = cols}, sorted);
}

void csr_check_meta(const at::Tensor& indices, const at::Tensor& indptr, std::int64_t rows, std::int64_t cols,
                    bool sorted) {
  check_matrix("csr_check", indices, indptr, rows, cols);
}

SPIKEFORGE_SCHEMAS(library) {
  const std::string of_csr = "(Tensor weights, Tensor indices, Tensor indptr, Tensor ";
  const std::string of_ell = "(Tensor weights, Tensor indices, Tensor ";
  const std::string size_of_csr = ", *, SymInt rows, SymInt cols, bool transpose=False, ";
  const std::string size_of_ell = ", *, SymInt cols, bool transpose=False, ";
  const std::string graded = "bool graded=False, ";
  const std::string end = "bool deterministic=False, bool unchecked=False) -> Tensor";
  for (const std::string kind : {"mv", "mm"}) {
    const std::string x = kind == "mv" ? "vector" : "matrix";
    library.def("event_csr" + kind + of_csr + "events" + size_of_csr + graded + end);
    library.def("csr" + kind + of_csr + x + size_of_csr + end);
    library.def("event_ell" + kind + of_ell + "events" + size_of_ell + graded + end);
    library.def("ell" + kind + of_ell + x + size_of_ell + end);
  }
  library.def(
      "csr_product(Tensor weights, Tensor indices, Tensor? indptr, Tensor x, *, SymInt rows, SymInt cols, bool "
      "transpose, bool matrix, str values, bool deterministic, bool unchecked=False) -> Tensor");
  library.def(
      "csr_weight_grad(Tensor x, Tensor grad, Tensor indices, Tensor? indptr, *, SymInt rows, SymInt cols, bool "
      "transpose, bool matrix, str values, bool unchecked=False) -> Tensor");
  library.def("csr_check(Tensor indices, Tensor indptr, *, int rows, int cols, bool sorted=True) -> ()");
}

// The lowered operators support vmap; otherwise torch would call the public ones once per map.
void register_products(torch::Library& library) {
  library.impl("event_csrmv", TORCH_FN((Operator<false, bool>::csr)));
  library.impl("event_csrmm", TORCH_FN((Operator<true, bool>::csr)));
  library.impl("csrmv", TORCH_FN((Operator<false>::csr)));
  library.impl("csrmm", TORCH_FN((Operator<true>::csr)));
  library.impl("event_ellmv", TORCH_FN((Operator<false, bool>::ell)));
  library.impl("event_ellmm", TORCH_FN((Operator<true, bool>::ell)));
  library.impl("ellmv", TORCH_FN((Operator<false>::ell)));
  library.impl("ellmm", TORCH_FN((Operator<true>::ell)));
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { register_products(library); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_products(library); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("csr_check", TORCH_FN(csr_check)); }

SPIKEFORGE_KERNELS(Meta, library) {
  library.impl("csr_check", TORCH_FN(csr_check_meta));
  library.impl("csr_product", TORCH_FN(product_kernel<product_meta>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_meta>));
}

// ---- gradients ----
//
// Gradients of products with stored matrices. With respect to the entries: the product of the upstream gradient with
// the transposed matrix, for events as for numbers (straight-through, also without an event). With respect to a weight:
// the input of its nonzero times the upstream gradient of its output. Both are registered operators, so that second
// derivatives are correct too.

// Two tensors of a call, its matrix and options, in the form that autograd saves.
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
  // Returns the gradient of the entries x: the product with the transposed matrix.
  at::Tensor grad_x(const at::Tensor& weights, const at::Tensor& grad, const at::Tensor& x) const {
    return call_product({weights, tensors_[2], indptr_, grad, transposed(options_)}).to(x.scalar_type());
  }
  at::Tensor grad_weights(const at::Tensor& weights, const at::Tensor& x, const at::Tensor& grad) const {
    if (weights.sym_numel() != 1) return call_weight_grad({x, grad, tensors_[2], indptr_, options_});
    // All nonzeros share one weight, so its gradient is the sum of grad times the result for a weight of 1.
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

at::Tensor product(const CsrMatrix& matrix, const at::Tensor& x) {
  const auto& [weights, indices, indptr, rows, cols, values, unchecked] = matrix;
  const std::optional<at::Tensor> begins = indptr;
  return call_product({weights,
                       indices,
                       begins,
                       x,
                       {.rows = rows, .cols = cols, .matrix = true, .values = values, .unchecked = unchecked}});
}

at::Tensor product_and_weight_grad(const CsrMatrix& matrix, const at::Tensor& x, const at::Tensor& e, Values values,
                                   const at::Tensor& sums) {
#if defined(SPIKEFORGE_WITH_CUDA)
  if (x.is_cuda() && x.size(1) <= event::most_with_gradient && x.numel() > 0)
    return product_and_weight_grad_cuda(matrix, x, counted(e, values, x.scalar_type()), sums);
#endif
  const std::optional<at::Tensor> begins = matrix.indptr;
  const WeightGradCall call{e,
                            x,
                            matrix.indices,
                            begins,
                            {.rows = matrix.rows,
                             .cols = matrix.cols,
                             .transpose = true,
                             .matrix = true,
                             .values = values,
                             .unchecked = matrix.unchecked}};
  if (sums.is_cpu())
    add_weight_grad_cpu(call, sums);
  else
    sums.add_(call_weight_grad(call));
  return product(matrix, x);
}

}  // namespace spikeforge::ops::sparse
