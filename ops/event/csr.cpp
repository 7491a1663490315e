// The public operators of stored matrices: all of them are one product, csr_product.
//
// A matrix is indices int32 [connections], the columns row after row, and indptr int32 or int64 [rows + 1]: the
// connections of row i are indptr[i] up to indptr[i + 1]. Columns of a row may come in any order and more than once; a
// row may be empty. In the ELL form, all rows have the same number: indices [rows, connections per row] and no indptr.
// weights has one value per connection (the shape of indices), or one element for all. The first call checks the
// indices of a matrix and throws if one is out of range; later calls use the stored result (ops/common/verified.h).
// `unchecked` skips the check: an index out of range then reads or writes memory out of bounds.
//
// An entry x of `events` is an event where it is true, or x > 0; NaN is none. An event counts 1, or with `graded` x.
// The result is A e, or with `transpose` e A, of the weights' type; sums of half types are float32 and rounded once.
// Weights of what is no event have no influence, not even as NaN or infinity. csrmv and csrmm count every entry as it
// is.
//
// events are [..., cols] for mv and [..., cols, n] for mm, with rows in place of cols under transpose; the result is
// [..., rows] and [..., rows, n], or cols. `deterministic` (or torch.use_deterministic_algorithms) gives the same bits
// at every run on a GPU too.
#include "ops/common/library.h"
#include "ops/event/product.h"

#include <ATen/ops/empty.h>

namespace spikeforge::ops::sparse {
namespace {

Values values_of() { return Values::number; }
Values values_of(bool graded) { return event_values(graded); }

// Graded is bool where entries are events.
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

// csr_check: checks the conditions that kernels require of a matrix, with messages. Later calls remember that it
// passed. Reads the matrix, from a GPU through a copy.
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

// The lowered operators support vmap; torch would otherwise call the public ones once per map.
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

}  // namespace
}  // namespace spikeforge::ops::sparse
