// Spikes in flight through connections with delays: a ring of slots. Slot t % slots holds the sums that arrive at step
// t.
//
//   deliver   A e to the ring, one group of lanes per row; finish of scatter.cuh follows if sums are not stored in the
//   ring.
//             e A is the scatter of that header.
//   take      moves what arrives at this step out of the ring
#pragma once

#include "cuda/event/scatter.cuh"

namespace spikeforge {
namespace event {

template <class S> __device__ __forceinline__ void deliver(const ProductArguments& a) {
  const int shift = doublings<S>(a);
  const Adder<S, false> adder(a, shift);
  if (!adder.ring.begun) return;
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  const auto* const entries = static_cast<const typename S::X*>(a.x) + blockIdx.y * a.cols;
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups) {
    const Int to = blockIdx.y * a.rows + row;
    for_nonzeros<S::unroll>(a.indices, S::begin(a, row), S::begin(a, row + 1), lane, S::lanes,
                            [&](const int(&columns)[S::unroll], Int k, const Wave& wave) {
                              typename S::X x[S::unroll];
#pragma unroll
                              for (int u = 0; u < S::unroll; ++u) x[u] = entries[columns[u]];
#pragma unroll
                              for (int u = 0; u < S::unroll; ++u) {
                                const Int at = k + u * S::lanes;
                                if (wave.has(u) && S::contributes(x[u]))
                                  adder.add(to + adder.ring.offset(adder.ring.delay(a, at)), adder.weight(at), x[u]);
                              }
                            });
  }
}

// Moves the slot to y, [all batches, out], and clears it. Nothing arrives before the first step.
template <class S> __device__ __forceinline__ void take(const ProductArguments& a) {
  using Compute = typename S::Compute;
  const Ring<S> ring(a);
  auto* const slot = static_cast<Compute*>(a.sums) + ring.offset(0);
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int i = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.slot_size; i += threads) {
    static_cast<Compute*>(a.y)[i] = ring.begun ? slot[i] : Compute(0);
    if (ring.begun) slot[i] = 0;
  }
}

}  // namespace event
}  // namespace spikeforge
