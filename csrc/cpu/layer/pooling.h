// Maxima and means over windows of images on the CPU, in one instruction set.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/instruction_set.h"
#include "csrc/kernels/layer/pooling.h"

#include <cstdint>

namespace spikeforge::cpu {

// Elements of x's rows, or of the result's.
constexpr std::int64_t longest_row(const layers::Images& images) {
  return (images.width < images.out_width ? images.out_width : images.width) * images.channels;
}

// The rows [first, last) of all images' rows together: of the result's, or of the gradient's of x. `scratch` is a
// thread's own, 24 bytes for each element of the longest row.
struct PoolingKernels {
  void (*forward)(const layers::PoolLaunch& call, std::int64_t first, std::int64_t last, void* scratch);
  void (*backward)(const layers::PoolLaunch& call, std::int64_t first, std::int64_t last, void* scratch);
};

SPIKEFORGE_EACH_SET(const PoolingKernels&, pooling_kernels, ());

// The kernels of the widest supported instruction set, as in loops().
const PoolingKernels& pooling_kernels();

}  // namespace spikeforge::cpu
