#include <spikeforge/ops/event/jit.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

at::Tensor jit_product_meta(const JitCall& call) {
  check_jit(call);
  return at::empty_symint(result_sizes(call.x, call.options), call.weights.options());
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) { library.impl("jit_product", TORCH_FN(jit_kernel<jit_product_meta>)); }

}  // namespace
}  // namespace spikeforge::ops::sparse
