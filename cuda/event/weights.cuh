// Changes of weights, one group of lanes per row: the gradient, which is the product of a nonzero's input and the
// gradient of its output; and plasticity, a spike's change of the weights of its row.
#pragma once

#include "cuda/event/event.cuh"

namespace spikeforge {
namespace event {

// One group of lanes per row, whose lanes process different nonzeros. y is [nnz], grad [batches, out, n].
template <class S> __device__ __forceinline__ void weight_gradient(const ProductArguments& a) {
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  const Int in = S::transpose ? a.rows : a.cols;
  const Int out = S::transpose ? a.cols : a.rows;
  const auto* const x = static_cast<const typename S::X*>(a.x);
  const auto* const grad = static_cast<const typename S::Weight*>(a.grad);
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups)
    for (Int k = S::begin(a, row) + lane; k < S::begin(a, row + 1); k += S::lanes) {
      const Int column = a.indices[k];
      const Int from = S::transpose ? row : column;
      const Int to = S::transpose ? column : row;
      typename S::Compute sum = 0;
      for (Int b = 0; b < a.batches; ++b)
        for (Int c = 0; c < a.n; ++c) {
          const auto entry = x[(b * in + from) * a.n + c];
          if (S::contributes(entry))
            sum += S::contribution(entry) * number_of<typename S::Compute>(grad[(b * out + to) * a.n + c]);
        }
      static_cast<typename S::Weight*>(a.y)[k] = S::round(sum);
    }
}

// x are events [rows], weights is the trace [cols] in the compute type, y the weights that change.
template <class S> __device__ __forceinline__ void plasticity(const ProductArguments& a) {
  using Compute = typename S::Compute;
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  auto* const weights = static_cast<typename S::Weight*>(a.y);
  const auto* const trace = static_cast<const Compute*>(a.weights);
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups) {
    if (!S::contributes(S::entry(a, a.rows, row, 0))) continue;
    const Int end = S::begin(a, row + 1);
    for (Int k = S::begin(a, row) + lane; k < end; k += S::lanes) {
      auto& weight = weights[a.slots ? a.slots[k] : k];
      Compute changed = number_of<Compute>(weight) + trace[a.indices[k]];
      // fmin and fmax would drop a NaN.
      if (changed < static_cast<Compute>(a.least)) changed = static_cast<Compute>(a.least);
      if (changed > static_cast<Compute>(a.most)) changed = static_cast<Compute>(a.most);
      weight = S::round(changed);
    }
  }
}

}  // namespace event
}  // namespace spikeforge
