#include "csrc/simulation/internal/near_first.h"
#include "csrc/kernels/network/launch.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"
#endif

namespace spikeforge::simulation {

at::Tensor near_first(Connectivity& matrix) {
  if (matrix.delays.numel() <= 1) return {};
#if defined(SPIKEFORGE_WITH_CUDA)
  const c10::DeviceGuard guard(matrix.indices.device());
  const std::int64_t rows = matrix.indptr.size(0) - 1;
  at::Tensor near = at::zeros({rows}, matrix.indices.options().dtype(at::kInt));
  const bool has_own_weights = matrix.weights.numel() == matrix.indices.numel();
  kernels::bring_near_first({.indptr = static_cast<const network::Int*>(matrix.indptr.const_data_ptr()),
                             .rows = rows,
                             .indices = matrix.indices.mutable_data_ptr<std::int32_t>(),
                             .weights = matrix.weights.mutable_data_ptr(),
                             .delays = matrix.delays.mutable_data_ptr(),
                             .near = near.mutable_data_ptr<std::int32_t>()},
                            has_own_weights ? static_cast<int>(matrix.weights.element_size()) : 0,
                            static_cast<int>(matrix.delays.element_size()), ops::gpu_of(near), ops::stream_of(near));
  return near;
#else
  return {};
#endif
}

}  // namespace spikeforge::simulation
