// Shapes and types alone, for FakeTensor, torch.compile and torch.export.
#include <spikeforge/ops/event/product.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor product_meta(const ProductCall& call) {
  check_product(call);
  return at::empty_symint(result_sizes(call.x, call.options), call.weights.options());
}

at::Tensor weight_grad_meta(const WeightGradCall& call) {
  check_weight_grad(call);
  return at::empty_symint(call.indices.sym_sizes(), call.grad.options());
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_meta>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_meta>));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
