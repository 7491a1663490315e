#include "csrc/simulation/internal/matrix_layout.h"
#include "csrc/kernels/network/launch.h"
#include "ops/common/result_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace spikeforge::simulation {
namespace {

// One value per connection, such as weights or delays.
struct Column {
  char* data = nullptr;
  std::size_t bytes = 0;  // per value; 0: one value for all connections
};

Column column_of(const at::Tensor& t, std::int64_t nnz) {
  if (t.numel() != nnz) return {};
  return {static_cast<char*>(t.mutable_data_ptr()), static_cast<std::size_t>(t.element_size())};
}

// Memory that a thread reuses for every row.
struct Scratch {
  std::vector<std::uint64_t> order;  // the column, and the position within the row
  std::vector<char> numbers;
};

void arrange(const Column& column, std::int64_t first, Scratch& scratch) {
  if (column.bytes == 0) return;
  const std::size_t count = scratch.order.size();
  char* const row = column.data + static_cast<std::size_t>(first) * column.bytes;
  scratch.numbers.assign(row, row + count * column.bytes);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(row + i * column.bytes, scratch.numbers.data() + (scratch.order[i] & 0xffffffffU) * column.bytes,
                column.bytes);
}

}  // namespace

void sort_rows(const Connectivity& matrix) {
  const std::int64_t nnz = matrix.indices.numel();
  if (nnz == 0) return;
  auto* const indices = matrix.indices.mutable_data_ptr<std::int32_t>();
  const auto* const begins = matrix.indptr.const_data_ptr<std::int64_t>();
  // A single value for all connections, or of one connection, is not sorted.
  const Column weights = column_of(matrix.weights, nnz), delays = column_of(matrix.delays, nnz);
  at::parallel_for(0, matrix.indptr.numel() - 1, 64, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    for (std::int64_t i = begin; i < end; ++i) {
      std::int32_t* const row = indices + begins[i];
      const auto count = static_cast<std::size_t>(begins[i + 1] - begins[i]);
      if (std::is_sorted(row, row + count)) continue;
      scratch.order.resize(count);
      for (std::size_t k = 0; k < count; ++k) scratch.order[k] = static_cast<std::uint64_t>(row[k]) << 32 | k;
      std::ranges::sort(scratch.order);
      for (std::size_t k = 0; k < count; ++k) row[k] = static_cast<std::int32_t>(scratch.order[k] >> 32);
      arrange(weights, begins[i], scratch);
      arrange(delays, begins[i], scratch);
    }
  });
}

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

at::Tensor in_large_pages(const at::Tensor& t) {
  if (!t.is_cpu()) return t;
  const at::Tensor moved =
      at::detail::empty_generic(t.sizes(), ops::result_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                t.scalar_type(), /*memory_format_opt=*/std::nullopt);
  return moved.copy_(t);
}

}  // namespace spikeforge::simulation
