// torch.vmap of products: entries that are mapped are one more leading dimension. Where weights or indices are mapped
// there is a matrix for each map, and a gradient of weights is one for each map too: those are computed one by one.
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/vmap_level.h>
#include <spikeforge/ops/event/jit.h>
#include <spikeforge/ops/event/linear.h>
#include <spikeforge/ops/event/product.h>

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

at::Tensor jit_product_batched(const JitCall& call) {
  const VmapLevel level(call.weights, call.x);
  if (!level.maps(call.weights))
    return level.mapped(call_jit({call.weights, level.first(call.x), call.options, call.draw}));
  return level.each([&](std::int64_t i) {
    return call_jit({level.one(call.weights, i), level.one(call.x, i), call.options, call.draw});
  });
}

at::Tensor event_linear_batched(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                bool graded) {
  const VmapLevel level(x, weight, bias);
  if (!level.maps(weight) && !level.maps(bias)) return level.mapped(call_linear(level.first(x), weight, bias, graded));
  return level.each(
      [&](std::int64_t i) { return call_linear(level.one(x, i), level.one(weight, i), level.one(bias, i), graded); });
}

at::Tensor event_linear_weight_grad_batched(const at::Tensor& x, const at::Tensor& grad, c10::SymInt in, bool graded) {
  const VmapLevel level(x, grad);
  return level.each(
      [&](std::int64_t i) { return call_linear_weight_grad(level.one(x, i), level.one(grad, i), in, graded); });
}

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl("csr_product", TORCH_FN(product_kernel<product_batched>));
  library.impl("csr_weight_grad", TORCH_FN(weight_grad_kernel<weight_grad_batched>));
  library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_batched>));
  library.impl("event_linear", TORCH_FN(event_linear_batched));
  library.impl("event_linear_weight_grad", TORCH_FN(event_linear_weight_grad_batched));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
