// Maxima and means over windows of images on the CPU, in one instruction set.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"
#include "csrc/kernels/layer/pooling.h"

#include <cstdint>

namespace spikeforge::cpu {

// Returns the maximum number of elements of a row of x or of the result.
constexpr std::int64_t longest_row(const layers::Images& images) {
  return (images.width < images.out_width ? images.out_width : images.width) * images.channels;
}

// Computes the rows [first, last), counted over all images, of the result, or of the gradient of x. `scratch` is
// private to a thread, with 24 bytes for each element of the longest row.
struct PoolingKernels {
  void (*forward)(const layers::PoolLaunch& call, std::int64_t first, std::int64_t last, void* scratch);
  void (*backward)(const layers::PoolLaunch& call, std::int64_t first, std::int64_t last, void* scratch);
};

SPIKEFORGE_EACH_SET(const PoolingKernels&, pooling_kernels, ());

// Returns the kernels of the widest supported instruction set, as in loops().
const PoolingKernels& pooling_kernels();

}  // namespace spikeforge::cpu
