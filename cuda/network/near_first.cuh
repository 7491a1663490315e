// Moves the connections of delay 1 to the front of each row, with one block per row, and writes their number. The i-th
// connection that must leave the front is swapped with the i-th that must move there, so the order is deterministic.
//
// Short names: F type of a weight; T type of a moved number.
#pragma once

#include "csrc/kernels/network/arguments.h"
#include "cuda/event/scatter.cuh"

namespace spikeforge {
namespace network {

// Positions within a row, of which a block stores up to `most` at once.
struct PlacesOfRow {
  static constexpr int most = 1024;
  int count;
  int place[most];

  // Finds the positions i of [begin, end) for which is_one(i) is true, `most` of them at most.
  template <class F> __device__ __forceinline__ void find(int begin, int end, int* of_warps, const F& is_one) {
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for (int first = begin; first < end && count < most; first += blockDim.x) {
      const int i = first + threadIdx.x;
      const bool is = i < end && is_one(i);
      const int at = count + event::sum_up_to_thread(is ? 1 : 0, of_warps);
      if (is && at <= most) place[at - 1] = i;
      __syncthreads();
      if (threadIdx.x == blockDim.x - 1) count = at < most ? at : most;
      __syncthreads();
    }
  }
};

template <class T> __device__ __forceinline__ void exchange(T* values, Int a, Int b) {
  const T kept = values[a];
  values[a] = values[b];
  values[b] = kept;
}

// Weight and Delay are types of the size of a weight and a delay. A Weight of one byte means that weights do not move.
template <class Weight, class Delay> __device__ __forceinline__ void near_first(const NearArguments& a) {
  __shared__ PlacesOfRow leaving, coming;
  __shared__ int of_warps[32];
  __shared__ int near;
  auto* const all_delays = static_cast<Delay*>(a.delays);
  for (Int row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Int first = a.indptr[row];
    const int count = static_cast<int>(a.indptr[row + 1] - first);
    Delay* const delays = all_delays + first;
    if (threadIdx.x == 0) near = 0;
    __syncthreads();
    int own = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) own += delays[i] == 1 ? 1 : 0;
    if (own > 0) atomicAdd(&near, own);
    __syncthreads();
    if (threadIdx.x == 0) a.near[row] = near;
    do {
      leaving.find(0, near, of_warps, [&](int i) { return delays[i] != 1; });
      coming.find(near, count, of_warps, [&](int i) { return delays[i] == 1; });
      for (int i = threadIdx.x; i < leaving.count; i += blockDim.x) {  // equal to coming.count
        const Int from = first + leaving.place[i], to = first + coming.place[i];
        exchange(a.indices, from, to);
        exchange(all_delays, from, to);
        if constexpr (sizeof(Weight) > 1) exchange(static_cast<Weight*>(a.weights), from, to);
      }
      __syncthreads();
    } while (leaving.count == PlacesOfRow::most);
  }
}

}  // namespace network
}  // namespace spikeforge
