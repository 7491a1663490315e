// torch.vmap of products: mapped entries become an additional leading dimension. With mapped weights or indices, or a
// mapped gradient of weights, each map has a separate matrix, and the maps are computed one by one. In a buffer of
// spikes in flight the mapped dimension follows the slots.
#include "ops/common/library.h"
#include "ops/common/vmap_level.h"
#include "ops/event/delays.h"
#include "ops/event/jit_delays.h"
#include "ops/event/linear.h"
#include "ops/event/product.h"

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

void check_buffer_is_mapped(const char* op, const VmapLevel& level, const at::Tensor& buffer) {
  TORCH_CHECK_VALUE(level.maps(buffer), op,
                    ": under vmap a buffer that is changed in place must be mapped, because the other arguments are");
}

VmapLevel level_of(const DeliverCall& call) {
  const auto& [weights, indices, indptr, x, options] = call.product;
  return VmapLevel(weights, indices, indptr, x, call.delays, call.buffer, call.step);
}
VmapLevel level_of(const JitDeliverCall& call) {
  return VmapLevel(call.product.weights, call.product.x, call.buffer, call.step);
}

bool maps_matrix(const VmapLevel& level, const DeliverCall& call) {
  const auto& [weights, indices, indptr, x, options] = call.product;
  return level.maps(weights) || level.maps(indices) || level.maps(indptr) || level.maps(call.delays) ||
         level.maps(call.step);
}
bool maps_matrix(const VmapLevel& level, const JitDeliverCall& call) {
  return level.maps(call.product.weights) || level.maps(call.step);
}

// Calls f with the call of map i, whose tensors are valid while f runs.
template <class F> auto with_one(const VmapLevel& level, const DeliverCall& call, std::int64_t i, F&& f) {
  const auto& [weights, indices, indptr, x, options] = call.product;
  return f(DeliverCall{{level.one(weights, i), level.one(indices, i), level.one(indptr, i), level.one(x, i), options},
                       level.one(call.delays, i),
                       level.one(call.buffer, i),
                       level.one(call.step, i)});
}
template <class F> auto with_one(const VmapLevel& level, const JitDeliverCall& call, std::int64_t i, F&& f) {
  const auto& [weights, x, options, draw] = call.product;
  return f(JitDeliverCall{{level.one(weights, i), level.one(x, i), options, draw},
                          call.delays,
                          level.one(call.buffer, i),
                          level.one(call.step, i)});
}

template <class Call> at::Tensor deliver_batched(const Call& call) {
  const VmapLevel level = level_of(call);
  if (maps_matrix(level, call))
    return level.each(
        [&](std::int64_t i) { return with_one(level, call, i, [](const Call& one) { return call_deliver(one); }); });
  const at::Tensor entries = level.folded(call.product.x, 0), buffer = level.folded(call.buffer, 1);
  return level.mapped(call_deliver(call.with(entries, buffer)), 1);
}

template <class Call> void deliver_batched_(const Call& call) {
  const VmapLevel level = level_of(call);
  check_buffer_is_mapped(call.name(), level, call.buffer);
  if (maps_matrix(level, call)) {
    const std::int64_t count = level.size().guard_int(__FILE__, __LINE__);
    for (std::int64_t i = 0; i < count; ++i) with_one(level, call, i, [](const Call& one) { call_deliver_(one); });
    return;
  }
  const at::Tensor entries = level.folded(call.product.x, 0), buffer = level.folded(call.buffer, 1);
  call_deliver_(call.with(entries, buffer));
}

at::Tensor take_batched_(const at::Tensor& buffer, const at::Tensor& step) {
  const VmapLevel level(buffer, step);
  check_buffer_is_mapped("take_arrivals", level, buffer);
  if (level.maps(step))
    return level.each([&](std::int64_t i) { return call_take_(level.one(buffer, i), level.one(step, i)); });
  return level.mapped(call_take_(level.folded(buffer, 1), step));
}

std::tuple<at::Tensor, at::Tensor> take_batched(const at::Tensor& buffer, const at::Tensor& step) {
  const VmapLevel level(buffer, step);
  if (!level.maps(step)) {
    auto [arrivals, left] = call_take(level.first(buffer).movedim(0, 1), step);
    return {level.mapped(arrivals), level.mapped(left, 1)};
  }
  std::vector<at::Tensor> left;
  at::Tensor arrivals = level.each([&](std::int64_t i) {
    auto [arrived, rest] = call_take(level.one(buffer, i), level.one(step, i));
    left.push_back(rest);
    return arrived;
  });
  return {arrivals, level.mapped(at::stack(left))};
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
  library.impl("csr_deliver", TORCH_FN((deliver_kernel<at::Tensor, deliver_batched<DeliverCall>>)));
  library.impl("csr_deliver_", TORCH_FN((deliver_kernel<void, deliver_batched_<DeliverCall>>)));
  library.impl("jit_deliver", TORCH_FN((jit_deliver_kernel<at::Tensor, deliver_batched<JitDeliverCall>>)));
  library.impl("jit_deliver_", TORCH_FN((jit_deliver_kernel<void, deliver_batched_<JitDeliverCall>>)));
  library.impl("take_arrivals", TORCH_FN(take_batched));
  library.impl("take_arrivals_", TORCH_FN(take_batched_));
  library.impl("event_linear", TORCH_FN(event_linear_batched));
  library.impl("event_linear_weight_grad", TORCH_FN(event_linear_weight_grad_batched));
}

}  // namespace
}  // namespace spikeforge::ops::sparse
