// Products of a matrix whose entries have a delay each, on the CPU in one instruction set. A sequence has a row for
// each feature, in which a step is `lanes` neighbouring numbers, one per sample: a delay is then a shift of the row,
// and each entry of the matrix adds a multiple of a shifted row to another. Sums over columns stay in registers, as
// those of a matrix product do.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// out[r, j] += Σ_c Σ_n coefficients[r, c, n] in[c, j + shifts[r, c] + n lanes]
struct DelayedProduct {
  std::int64_t rows = 0, columns = 0, taps = 0;
  std::int64_t lanes = 0;                // elements of a step
  std::int64_t reach = 0;                // an upper bound of shift + taps * lanes
  const std::int32_t* shifts = nullptr;  // [rows, columns]
  const void* coefficients = nullptr;    // [rows, columns, taps]
  const void* in = nullptr;              // [columns, in_stride]; up to a vector after the last step is read
  std::int64_t in_stride = 0;
  void* out = nullptr;  // [rows, out_stride]; whole vectors
  std::int64_t out_stride = 0;
};

// sums[r, c, n] += Σ_j of[r, j] in[c, j + shifts[r, c] + n lanes], for j < length, a multiple of the vector's length:
// after the last step, `of` is zero. This is the gradient of the coefficients.
struct DelayedSums {
  DelayedProduct product;  // without coefficients and out
  const void* of = nullptr;
  std::int64_t of_stride = 0, length = 0;
  void* sums = nullptr;
  // If a step is a vector: the steps of each row of `in` that are not all zero, or null. `of` must then be zero before
  // and after the sequence, for the number of steps of the longest delay.
  const std::uint16_t* steps = nullptr;  // [columns, steps_stride]
  std::int64_t steps_stride = 0;
  const std::int32_t* step_counts = nullptr;  // [columns]
};

// A conversion between a sequence [steps, samples, features], in the element type of x, and rows of features, in the
// compute type. A step of a row has the samples [first, first + count).
struct SequenceRows {
  std::int64_t steps = 0, samples = 0, features = 0;
  std::int64_t first = 0, count = 0;
  std::int64_t lanes = 0, stride = 0;  // of rows
};

struct DelayedKernels {
  std::int64_t vector_bytes;
  // Computes the elements [begin, end), which are whole vectors, of the rows [row, last_row). `type` is float32 or
  // float64.
  void (*add)(const DelayedProduct&, DType type, std::int64_t row, std::int64_t last_row, std::int64_t begin,
              std::int64_t end);
  // Computes the sums of the rows [row, last_row).
  void (*sums)(const DelayedSums&, DType type, std::int64_t row, std::int64_t last_row);
  // Lists the steps of a row that are not all zero, of at most 65536, and returns their number. A step is a vector;
  // `list` has space for one more than the number of steps.
  std::int64_t (*list)(DType type, const void* row, std::int64_t steps, std::uint16_t* list);
  void (*to_rows)(const SequenceRows&, DType, const void* x, void* rows);
  void (*from_rows)(const SequenceRows&, DType, const void* rows, void* x);
};

// The maximum number of vectors of a row that `add` computes at once.
constexpr std::int64_t delayed_tile = 16;

SPIKEFORGE_EACH_SET(const DelayedKernels&, delayed_kernels, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const DelayedKernels& delayed_kernels();

}  // namespace spikeforge::cpu
