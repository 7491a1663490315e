#pragma once

#include "csrc/kernels/layer/arguments.h"

namespace spikeforge {
namespace layers {

__device__ __forceinline__ unsigned quotient(unsigned n, const Divisor& by) {
  return (__umulhi(n, by.factor) + n) >> by.shift;
}
__device__ __forceinline__ int quotient(int n, const Divisor& by) {
  return static_cast<int>(quotient(static_cast<unsigned>(n), by));
}

}  // namespace layers
}  // namespace spikeforge
