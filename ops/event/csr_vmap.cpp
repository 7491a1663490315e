// torch.vmap. Entries that are mapped are one more leading dimension. Where weights are mapped there is a matrix for
// each map, and a gradient of weights is one for each map too: those are computed one by one.
#include <spikeforge/ops/common/vmap_level.h>
#include <spikeforge/ops/event/product.h>

#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor product_batched(const ProductCall& call) {
  const VmapLevel level(call.weights, call.indices, call.indptr, call.x);
  if (!level.maps(call.weights) && !level.maps(call.indices) && !level.maps(call.indptr))
    return level.mapped(call_product({call.weights, call.indices, call.indptr, level.first(call.x), call.options}));
  return level.each([&](std::int64_t i) {
    return call_product({level.one(call.weights, i), level.one(call.indices, i), level.one(call.indptr, i),
                         level.one(call.x, i), call.options});
  });
}

at::Tensor weight_grad_batched(const WeightGradCall& call) {
  const VmapLevel level(call.x, call.grad, call.indices, call.indptr);
  return level.each([&](std::int64_t i) {
    return call_weight_grad({level.one(call.x, i), level.one(call.grad, i), level.one(call.indices, i),
                             level.one(call.indptr, i), call.options});
  });
}

TORCH_LIBRARY_IMPL(spikeforge, FuncTorchBatched, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_batched>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_batched>));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
