// A sparse matrix and its operands as plain data, which an operator passes to the kernels of a CPU or a GPU after all
// checks.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/kernels/event/arguments.h"

#include <cstdint>

namespace spikeforge::event {

enum class EntryType : std::uint8_t { boolean, f16, bf16, f32, f64 };

constexpr EntryType entry_type(DType type) { return static_cast<EntryType>(static_cast<int>(type) + 1); }

// The matrix by rows. If `indptr` is null, every row has `width` nonzeros (ELL).
struct Rows {
  const std::int32_t* indices = nullptr;  // the column of a nonzero
  const void* indptr = nullptr;           // [rows + 1], int32 or int64
  bool wide_indptr = false;
  std::int64_t width = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t nnz = 0;

  std::int64_t begin(std::int64_t row) const {
    if (indptr == nullptr) return row * width;
    return wide_indptr ? static_cast<const std::int64_t*>(indptr)[row] : static_cast<const std::int32_t*>(indptr)[row];
  }
  std::int64_t end(std::int64_t row) const { return begin(row + 1); }
};

// Spikes in flight: the contribution of a nonzero is added to sums[offsets[its delay] + its target].
struct Ring {
  void* sums = nullptr;                   // in the compute type of the weights
  const std::int64_t* offsets = nullptr;  // of each delay
  const void* delays = nullptr;           // one per nonzero, or one for all
  bool wide_delays = false;               // int32, else uint8
  bool same_delay = false;
};

// One weight per nonzero, or one for all.
struct Weights {
  const void* data = nullptr;
  DType type{};
  bool homogeneous = false;
};

}  // namespace spikeforge::event
