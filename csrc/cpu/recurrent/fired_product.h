// The gradient of a recurrent layer's matrix on the CPU, in one instruction set: of spikes [rows, width] and gradients
// [rows, width] the product of the first, transposed, and the second. The rows of gradients are added to those of the
// neurons that fired, neuron by neuron, in panels of columns that stay in the cache.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// Columns at once, whose sums stay in registers: with four vectors of AVX-512 additions do not wait for each other.
constexpr std::int64_t fired_panel_bytes = 256;
// Rows at once, which are summed before they are added to the others: a panel of them takes 256 KiB.
constexpr std::int64_t fired_rows = 1024;

struct FiredProduct {
  std::int64_t rows = 0, width = 0;  // at most fired_rows
  std::int32_t* fired = nullptr;     // [rows, width]: of each row the neurons that fired, at its beginning
  std::int32_t* counts = nullptr;    // [rows]: how many
  std::uint16_t* when = nullptr;     // [width, rows]: of each neuron the rows in which it fired, at its beginning
  std::int32_t* times = nullptr;     // [width]: how many
  const void* gradients = nullptr;
  void* product = nullptr;  // [width, width] of the compute type, to which is added
};

struct FiredKernels {
  // Lists the rows [begin, end) of spikes; how many fired, or -1 where a number is neither 0 nor 1.
  std::int64_t (*list)(const FiredProduct&, DType, const void* spikes, std::int64_t begin, std::int64_t end);
  // Lists all rows by neuron, from what is listed by row.
  void (*turn)(const FiredProduct&);
  // All rows, for the panel of columns from `column` on; `panel` has room for that of each row, on a cache line.
  void (*add)(const FiredProduct&, DType, std::int64_t column, void* panel);
};

SPIKEFORGE_EACH_SET(const FiredKernels&, fired_kernels, ());

// The kernels of the widest supported instruction set, as in loops().
const FiredKernels& fired_kernels();

}  // namespace spikeforge::cpu
