// torch.vmap of event_linear: mapped events are one more leading dimension; weights that are mapped are taken one by
// one.
#include <spikeforge/ops/common/vmap_level.h>
#include <spikeforge/ops/event/linear.h>

#include <torch/library.h>

namespace spikeforge::ops::sparse {
namespace {

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

TORCH_LIBRARY_IMPL(spikeforge, FuncTorchBatched, library) {
  library.impl("event_linear", TORCH_FN(event_linear_batched));
  library.impl("event_linear_weight_grad", TORCH_FN(event_linear_weight_grad_batched));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
