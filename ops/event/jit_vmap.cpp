// torch.vmap of products with a matrix that is drawn: mapped entries are one more leading dimension; weights that are
// mapped are taken one by one.
#include <spikeforge/ops/common/vmap_level.h>
#include <spikeforge/ops/event/jit.h>

#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor jit_product_batched(const JitCall& call) {
  const VmapLevel level(call.weights, call.x);
  if (!level.maps(call.weights))
    return level.mapped(call_jit({call.weights, level.first(call.x), call.options, call.draw}));
  return level.each([&](std::int64_t i) {
    return call_jit({level.one(call.weights, i), level.one(call.x, i), call.options, call.draw});
  });
}

TORCH_LIBRARY_IMPL(spikeforge, FuncTorchBatched, library) {
  library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_batched>));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
