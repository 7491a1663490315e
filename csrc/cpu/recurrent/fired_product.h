// The gradient of a recurrent layer's matrix on the CPU, in one instruction set: the product of the transposed spikes
// [rows, width] and gradients [rows, width]. For each neuron, the rows of gradients in which it fired are summed, in
// panels of columns that stay in the cache.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"

#include <cstdint>

namespace spikeforge::cpu {

// The columns processed at once, whose sums stay in registers. With four vectors of AVX-512, additions do not wait for
// each other.
constexpr std::int64_t fired_panel_bytes = 256;
// The rows that are summed before they are added to the result: their panel takes 256 KiB.
constexpr std::int64_t fired_rows = 1024;

struct FiredProduct {
  std::int64_t rows = 0, width = 0;  // at most fired_rows rows
  std::int32_t* fired = nullptr;     // [rows, width]: the neurons that fired, at the start of each row
  std::int32_t* counts = nullptr;    // [rows]: their number
  std::uint16_t* when = nullptr;     // [width, rows]: the rows in which a neuron fired, at the start
  std::int32_t* times = nullptr;     // [width]: their number
  const void* gradients = nullptr;
  void* product = nullptr;  // [width, width] of the compute type, to which results are added
};

struct FiredKernels {
  // Lists the rows [begin, end) of spikes. Returns the number of spikes, or -1 if an element is neither 0 nor 1.
  std::int64_t (*list)(const FiredProduct&, DType, const void* spikes, std::int64_t begin, std::int64_t end);
  // Lists the rows of each neuron, from the neurons of each row.
  void (*turn)(const FiredProduct&);
  // Adds all rows, for the panel of columns from `column` on. `panel` has space for the panel of all rows, aligned to a
  // cache line.
  void (*add)(const FiredProduct&, DType, std::int64_t column, void* panel);
};

SPIKEFORGE_EACH_SET(const FiredKernels&, fired_kernels, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const FiredKernels& fired_kernels();

}  // namespace spikeforge::cpu
