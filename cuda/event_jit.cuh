// Products of a random matrix that is not stored (csrc/kernels/event/random_rows.h).
//
//   jit_gather    A e   a group of lanes a row, a piece of it a lane at a time
//   jit_scatter   e A   a thread a piece of a row that contributes, adding to sums in memory, which finish of
//                       event_scatter.cuh makes results
#pragma once

#include <spikeforge/kernels/event/random_rows.h>
#include <spikeforge/cuda/event_scatter.cuh>

namespace spikeforge {
namespace event {

template <class S, Distribution distribution>
struct JitWeights {
  using Compute = typename S::Compute;
  Compute first = 1, second = 0;

  __device__ __forceinline__ explicit JitWeights(const ProductArguments& a) {
    if constexpr (distribution == Distribution::constant) return;  // the result is multiplied by it
    const auto* const weights = static_cast<const typename S::Weight*>(a.weights);
    first = number_of<Compute>(weights[0]);
    second = number_of<Compute>(weights[1]);
  }
  __device__ __forceinline__ Compute operator()(float drawn) const {
    return weight_of<distribution>(first, second, drawn);
  }
};

template <class S, Distribution distribution>
__device__ __forceinline__ void jit_gather(const JitArguments& args) {
  const ProductArguments& a = args.product;
  const RandomRows& matrix = args.matrix;
  const JitWeights<S, distribution> weights(a);
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups)
    for (Int c0 = 0; c0 < a.n; c0 += S::columns) {
      typename S::Sum sums[S::columns] = {};
      for (Int piece = lane; piece < matrix.pieces; piece += S::lanes)
        for_each_connection<distribution>(matrix, row, piece, [&](Int column, float drawn) {
#pragma unroll
          for (int c = 0; c < S::columns; ++c) {
            if (c0 + c >= a.n) break;
            const auto x = S::entry(a, a.cols, column, c0 + c);
            if (!S::contributes(x)) continue;
            if constexpr (S::counts)
              sums[c] += 1;
            else
              sums[c] += S::contribution(x) * weights(drawn);
          }
        });
#pragma unroll
      for (int c = 0; c < S::columns; ++c) {
        const auto sum = sum_over_lanes<S::lanes>(sums[c], 1);
        if (lane == 0 && c0 + c < a.n)
          static_cast<typename S::Weight*>(a.y)[(blockIdx.y * a.rows + row) * a.n + c0 + c] = S::result(a, sum);
      }
    }
}

template <class S, Distribution distribution>
__device__ __forceinline__ void jit_scatter(const JitArguments& args) {
  const ProductArguments& a = args.product;
  const RandomRows& matrix = args.matrix;
  const JitWeights<S, distribution> weights(a);
  int shift = 0;
  if constexpr (S::sums == Sums::fixed) shift = doublings<S::homogeneous>(a);
  const Adder<S, false> adder{a, Doubled(shift)};
  const Int base = blockIdx.y * a.cols * a.n;
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int item = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; item < a.rows * matrix.pieces;
       item += threads) {
    const Int row = item / matrix.pieces;
    bool contributes = false;
    for (Int c = 0; c < a.n && !contributes; ++c) contributes = S::contributes(S::entry(a, a.rows, row, c));
    if (!contributes) continue;
    for_each_connection<distribution>(matrix, row, item % matrix.pieces, [&](Int column, float drawn) {
      for (Int c = 0; c < a.n; ++c) {
        const auto x = S::entry(a, a.rows, row, c);
        if (S::contributes(x)) adder.add(base + column * a.n + c, weights(drawn), x);
      }
    });
  }
}

}  // namespace event
}  // namespace spikeforge
