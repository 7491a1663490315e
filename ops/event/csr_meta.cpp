// Shapes and types alone, for FakeTensor, torch.compile and torch.export.
#include <spikeforge/ops/event/product.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor product_meta(const at::Tensor& weights, const at::Tensor& indices, const std::optional<at::Tensor>& indptr,
                        const at::Tensor& x, c10::SymInt rows, c10::SymInt cols, bool transpose, bool matrix,
                        c10::string_view values, bool deterministic) {
  const Form form{std::move(rows), std::move(cols), transpose, matrix, parse_values(values), deterministic};
  check_product(weights, indices, indptr, x, form);
  return at::empty_symint(result_sizes(x, form), weights.options());
}

at::Tensor weight_grad_meta(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& indices,
                            const std::optional<at::Tensor>& indptr, c10::SymInt rows, c10::SymInt cols, bool transpose,
                            bool matrix, c10::string_view values) {
  check_weight_grad(x, grad, indices, indptr,
                    {std::move(rows), std::move(cols), transpose, matrix, parse_values(values), false});
  return at::empty_symint(indices.sym_sizes(), grad.options());
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) {
  library.impl("csr_product", TORCH_FN(product_meta));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_meta));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
