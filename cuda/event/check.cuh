// Checks that the indices of a stored matrix are in range. Later kernels of the stream do not read a matrix that failed
// the check, and the host reads the result when it is available.
#pragma once

#include "cuda/event/event.cuh"

namespace spikeforge {
namespace event {

template <class S, class Index>
__device__ __forceinline__ bool is_wrong(const ProductArguments& a, Int delays, Int first, Int step) {
  const auto below = [](Int x, Int bound) {
    return static_cast<unsigned long long>(x) < static_cast<unsigned long long>(bound);
  };
  const auto* const indices = reinterpret_cast<const Index*>(a.indices);
  bool wrong = false;
  for (Int k = first; k < a.nnz; k += step) wrong |= !below(indices[k], a.cols);
  if (a.slots != nullptr)
    for (Int k = first; k < a.nnz; k += step) wrong |= !below(a.slots[k], a.nnz);
  if constexpr (S::delays != Delays::none)
    for (Int k = first; k < delays; k += step) wrong |= !below(Ring<S>::delay_of(a, k), a.ring_slots);
  if constexpr (S::indptr != 0) {
    for (Int row = first; row < a.rows; row += step) wrong |= S::begin(a, row) > S::begin(a, row + 1);
    if (first == 0) wrong |= S::begin(a, 0) != 0 || S::begin(a, a.rows) != a.nnz;
  }
  return wrong;
}

template <class S, class Index> __device__ __forceinline__ void check(const CheckArguments& a) {
  const bool wrong = is_wrong<S, Index>(a.product, a.delays, static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x,
                                        static_cast<Int>(gridDim.x) * blockDim.x);
  const bool of_block = __syncthreads_or(wrong) != 0;
  if (threadIdx.x != 0) return;
  if (of_block) atomicExch(a.refused, 1u);
  __threadfence();
  if (atomicAdd(a.refused + 1, 1u) + 1 < gridDim.x || a.answer == nullptr) return;
  const bool of_any = atomicAdd(a.refused, 0u) != 0;
  *static_cast<volatile unsigned*>(a.answer) = static_cast<unsigned>(of_any ? Answer::wrong : Answer::right);
  __threadfence_system();
}

}  // namespace event
}  // namespace spikeforge
