// Sums the partial gradients of a parameter over the neurons that share it: from [outer, count, inner] to [count], or
// to [gridDim.z, count] if blocks divide the outer rows among them. A block sums one channel, or eight neighbouring
// channels, always in the same order.
//
// Short names: F type of the arithmetic.
#pragma once

#include "csrc/kernels/multistep/channel_sums_arguments.h"

namespace spikeforge {

template <class F> struct ChannelSums {
  static constexpr int most_threads = 1024, unrolled = 8;

  // blockDim.x is a power of two.
  static __device__ __forceinline__ void run(const ChannelSumsArgs& a) {
    __shared__ F sums[most_threads];
    const int channels = a.inner == 1 ? channels_side_by_side : 1;
    const long long first = static_cast<long long>(blockIdx.x) * channels;
    // The block's part of a row. Each thread sums one of several neighbouring channels.
    const long long width = channels * a.inner;
    const int threads = static_cast<int>(blockDim.x);
    const long long down = threads / width, right = threads % width;
    const long long begin = blockIdx.z * a.rows, end = begin + a.rows < a.outer ? begin + a.rows : a.outer;
    long long row = begin + threadIdx.x / width, column = threadIdx.x % width;
    const bool there = a.inner > 1 || first + column < a.count;
    const F* const from = static_cast<const F*>(a.from[blockIdx.y]) + first * a.inner;
    const long long stride = a.count * a.inner;

    F sum = F(0);
    while (there && row < end) {
      F values[unrolled];
#pragma unroll
      for (int u = 0; u < unrolled; ++u) {
        values[u] = row < end ? from[row * stride + column] : F(0);
        row += down;
        column += right;
        if (column >= width) {
          column -= width;
          ++row;
        }
      }
#pragma unroll
      for (int u = 0; u < unrolled; ++u) sum += values[u];
    }

    sums[threadIdx.x] = sum;
    for (int half = threads / 2; half >= channels; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x < channels && there)
      static_cast<F*>(a.to[blockIdx.y])[blockIdx.z * a.count + first + threadIdx.x] = sums[threadIdx.x];
  }
};

}  // namespace spikeforge
