// Events times a dense matrix: the sum of the rows of active inputs.
//
// A block processes 1024 inputs at a time: it lists the active ones in shared memory, in order, and each thread sums
// one column of their rows. If there are few columns, the blocks along y divide the inputs among them, and their sums
// are then added in a fixed order.
#pragma once

#include "cuda/event/event.cuh"

namespace spikeforge {
namespace event {

template <class S, bool packed>
__device__ __forceinline__ unsigned word_of(const LinearArguments& a, Int batch, Int w) {
  if constexpr (packed) {
    return w < a.words ? static_cast<const unsigned*>(a.x)[batch * a.words + w] : 0u;
  } else {
    const Int i = w * 32 + (threadIdx.x & 31);
    const bool is = i < a.in && S::contributes(static_cast<const typename S::X*>(a.x)[batch * a.in + i]);
    return __ballot_sync(~0u, is);
  }
}

template <class S, bool packed> __device__ __forceinline__ void linear(const LinearArguments& a) {
  using Compute = typename S::Compute;
  using Weight = typename S::Weight;
  __shared__ unsigned words[32];
  __shared__ int active[inputs_at_once];
  __shared__ int count;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const Int batch = a.first_batch + blockIdx.z;
  const Int column = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto* const weight = static_cast<const Weight*>(a.weight);
  Compute sum = 0;
  for (Int first = static_cast<Int>(blockIdx.y) * inputs_at_once; first < a.in;
       first += static_cast<Int>(gridDim.y) * inputs_at_once) {
    for (int w = warp; w < 32; w += blockDim.x / 32) {
      const unsigned word = word_of<S, packed>(a, batch, first / 32 + w);
      if (lane == 0) words[w] = word;
    }
    __syncthreads();
    if (warp == 0) {
      unsigned word = words[lane];
      // Bits after the last input are ignored.
      const Int beyond = first + lane * 32 + 32 - a.in;
      if (packed && beyond > 0) word = beyond >= 32 ? 0u : word & (~0u >> beyond);
      int until = __popc(word);
      const int own = until;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, until, d);
        if (lane >= d) until += other;
      }
      if (lane == 31) count = until;
      for (int at = until - own; word != 0; word &= word - 1) active[at++] = lane * 32 + __ffs(word) - 1;
    }
    __syncthreads();
    if (column < a.out) {
      const auto term = [&](int at) -> Compute {
        const Int i = first + active[at];
        const Compute w = number_of<Compute>(weight[i * a.out + column]);
        if constexpr (packed || S::values == Values::event)
          return w;
        else
          return S::contribution(static_cast<const typename S::X*>(a.x)[batch * a.in + i]) * w;
      };
      constexpr int unroll = 8;
      int at = 0;
      for (; at + unroll <= count; at += unroll) {
        Compute terms[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) terms[u] = term(at + u);
#pragma unroll
        for (int u = 0; u < unroll; ++u) sum += terms[u];
      }
      for (; at < count; ++at) sum += term(at);
    }
    __syncthreads();
  }
  if (column >= a.out) return;
  if (a.parts != nullptr) {
    static_cast<Compute*>(a.parts)[(blockIdx.y * a.batches + batch) * a.out + column] = sum;
    return;
  }
  if (a.bias != nullptr) sum += number_of<Compute>(static_cast<const Weight*>(a.bias)[column]);
  static_cast<Weight*>(a.y)[batch * a.out + column] = S::round(sum);
}

}  // namespace event
}  // namespace spikeforge
