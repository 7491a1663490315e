// The gradient of a recurrent layer's matrix on the CPU, in one instruction set: of spikes [rows, width] and gradients
// [rows, width] the product of the first, transposed, and the second. The rows of gradients are added to those of the
// neurons that fired, in panels of columns that stay in the cache.
#pragma once

#include <spikeforge/base/dtype.h>

#include <cstdint>

namespace spikeforge::cpu {

// Columns at once: the sums of 512 neurons take 64 KiB. With a cache line, two and four, 8000 rows of 512 neurons of
// which 12 % fire, float32: 35, 21 and 22 ms on one Zen 4 core, where the dense product takes 45.
constexpr std::int64_t fired_panel_bytes = 128;

struct FiredProduct {
  std::int64_t rows = 0, width = 0;
  std::int32_t* fired = nullptr;   // [rows, width]: of each row the neurons that fired, at its beginning
  std::int32_t* counts = nullptr;  // [rows]: how many
  const void* gradients = nullptr;
  void* product = nullptr;  // [width, width] of the compute type, to which is added
};

struct FiredKernels {
  // Lists the rows [begin, end) of spikes; how many fired, or -1 where a number is neither 0 nor 1.
  std::int64_t (*list)(const FiredProduct&, DType, const void* spikes, std::int64_t begin, std::int64_t end);
  // All rows, for the panel of columns from `column` on; `sums` has room for [width] panels, on a cache line.
  void (*add)(const FiredProduct&, DType, std::int64_t column, void* sums);
};

const FiredKernels& fired_kernels_default();
const FiredKernels& fired_kernels_avx2();
const FiredKernels& fired_kernels_avx512();

// Of the widest set, as loops() chooses.
const FiredKernels& fired_kernels();

}  // namespace spikeforge::cpu
