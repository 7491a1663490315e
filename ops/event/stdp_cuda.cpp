#include "csrc/jit/spec_table.h"
#include "ops/common/on_stream.h"
#include "ops/event/stdp.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace spikeforge::ops::sparse {

void update_weights_cuda(const WeightUpdate& update) {
  const auto& matrix = update.matrix.rows;
  if (matrix.nnz == 0) return;
  const c10::cuda::OptionalCUDAGuard guard(update.weights.device());
  const jit::Device& device = gpu_of(update.weights);
  const event::KernelSpec spec = gpu_update(update);
  const event::ProductArguments args{
      .indices = matrix.indices,
      .indptr = matrix.indptr,
      .rows = matrix.rows,
      .cols = matrix.cols,
      .nnz = matrix.nnz,
      .weights = update.trace.const_data_ptr(),
      .x = update.events.const_data_ptr(),
      .y = update.weights.mutable_data_ptr(),
      .slots = update.slots.defined() ? static_cast<const event::Int*>(update.slots.const_data_ptr()) : nullptr,
      .n = 1,
      .batches = 1,
      .least = update.least,
      .most = update.most,
      .refused = update.refused};
  constexpr std::int64_t block = 256;
  const std::int64_t blocks = std::clamp<std::int64_t>((matrix.rows * spec.lanes + block - 1) / block, 1,
                                                       std::int64_t{8} * device.multiprocessors);
  jit::SpecTable<event::KernelSpec>::of(device)
      .get(spec, device)
      .launch({static_cast<unsigned>(blocks), 1, 1}, block, 0, stream_of(update.weights), &args, sizeof args);
}

}  // namespace spikeforge::ops::sparse
