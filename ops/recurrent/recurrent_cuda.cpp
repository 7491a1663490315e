#include "ops/common/on_stream.h"
#include "ops/recurrent/call.h"

#include <c10/cuda/CUDAGuard.h>

#include <optional>

namespace spikeforge::ops::recurrent {
namespace {

// Returns the scratch memory of a call's kernel, undefined if it needs none; std::nullopt if there is no kernel.
template <class AnyLaunch> std::optional<at::Tensor> with_scratch(AnyLaunch& launch, const at::Tensor& x) {
  const std::optional<std::int64_t> bytes = kernels::scratch_bytes(launch, gpu_of(x));
  if (!bytes) return {};
  if (*bytes == 0) return at::Tensor();
  at::Tensor scratch = at::empty({*bytes}, x.options().dtype(at::kByte));
  launch.recurrence.scratch = scratch.mutable_data_ptr();
  return scratch;
}

// Runs one kernel over all steps. Returns std::nullopt if there is none for this call.
std::optional<RecurrentResults> forward_at_once(const RecurrentCall& call, bool save) {
  const Prepared prepared = prepare_samples(call);
  const at::Tensor& x = prepared.first_input;
  RecurrentResults results = allocate(call, prepared, save);
  DescribedForward described(call, prepared, results);
  void* const stream = stream_of(x);
  const std::optional<at::Tensor> scratch = with_scratch(described.launch, x);
  if (!scratch) return {};
  kernels::launch_recurrent(described.launch, gpu_of(x), stream);
  return results;
}

std::optional<Tensors> backward_at_once(const RecurrentBackwardCall& call) {
  const Prepared prepared = prepare_samples(call);
  const at::Tensor& x = prepared.first_input;
  const Gradients gradients = check_and_allocate(call, prepared);
  DescribedBackward described(call, prepared, gradients);
  void* const stream = stream_of(x);
  const std::optional<at::Tensor> scratch = with_scratch(described.launch, x);
  if (!scratch) return {};
  kernels::launch_recurrent(described.launch, gpu_of(x), stream);
  return reduce_and_list(call, gradients);
}

}  // namespace

RecurrentResults forward_cuda(const RecurrentCall& call, bool save) {
  const c10::cuda::OptionalCUDAGuard guard(call.x().device());
  if (std::optional<RecurrentResults> results = forward_at_once(call, save)) return *std::move(results);
  return forward_stepped(call, save);
}

Tensors backward_cuda(const RecurrentBackwardCall& call) {
  const c10::cuda::OptionalCUDAGuard guard(call.inputs[0].device());
  if (std::optional<Tensors> gradients = backward_at_once(call)) return *std::move(gradients);
  return backward_stepped(call);
}

}  // namespace spikeforge::ops::recurrent
