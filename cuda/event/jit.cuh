// Products of a random matrix that is not stored (csrc/kernels/event/random_rows.h).
//
//   jit_gather    A e   a group of lanes a row, a piece of it a lane at a time
//   jit_scatter   e A   a thread a piece of a row that contributes, adding to sums in memory, which finish of
//                       event_scatter.cuh makes results
//
// With delays both add to a ring.
#pragma once

#include "csrc/kernels/event/random_rows.h"
#include "cuda/event/scatter.cuh"

namespace spikeforge {
namespace event {

template <class S, Distribution distribution> struct JitWeights {
  using Compute = typename S::Compute;
  Compute first = 1, second = 0;

  __device__ __forceinline__ explicit JitWeights(const ProductArguments& a) {
    if constexpr (distribution == Distribution::constant) return;  // the result is multiplied by the weight later
    const auto* const weights = static_cast<const typename S::Weight*>(a.weights);
    first = number_of<Compute>(weights[0]);
    second = number_of<Compute>(weights[1]);
  }
  __device__ __forceinline__ Compute operator()(float drawn) const {
    return weight_of<distribution>(first, second, drawn);
  }
};

// The contribution of a connection to one of the results, at `to` in each slot.
template <class S, class Weights>
__device__ __forceinline__ void deliver_drawn(const Adder<S, false>& adder, const RandomDelays& delays,
                                              const Weights& weights, const Connection& connection, Int to,
                                              typename S::X x) {
  const Int slot = S::delays == Delays::none ? 0 : adder.ring.offset(delay_of(delays, connection));
  adder.add(slot + to, S::homogeneous ? adder.weight(0) : weights(connection.drawn), x);
}

template <class S, Distribution distribution> __device__ __forceinline__ void sum_drawn_rows(const JitArguments& args) {
  const ProductArguments& a = args.product;
  const RandomRows& matrix = args.matrix;
  const JitWeights<S, distribution> weights(a);
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups)
    for (Int c0 = 0; c0 < a.n; c0 += S::columns) {
      typename S::Sum sums[S::columns] = {};
      for (Int piece = lane; piece < matrix.pieces; piece += S::lanes)
        for_each_connection<distribution>(matrix, row, piece, [&](const Connection& connection) {
#pragma unroll
          for (int c = 0; c < S::columns; ++c) {
            if (c0 + c >= a.n) break;
            const auto x = S::entry(a, a.cols, connection.column, c0 + c);
            if (!S::contributes(x)) continue;
            if constexpr (S::counts)
              sums[c] += 1;
            else
              sums[c] += S::contribution(x) * weights(connection.drawn);
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
__device__ __forceinline__ void deliver_drawn_rows(const JitArguments& args) {
  const ProductArguments& a = args.product;
  const RandomRows& matrix = args.matrix;
  const JitWeights<S, distribution> weights(a);
  const int shift = doublings<S>(a);
  const Adder<S, false> adder(a, shift);
  if (!adder.ring.begun) return;
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups)
    for (Int piece = lane; piece < matrix.pieces; piece += S::lanes)
      for_each_connection<distribution>(matrix, row, piece, [&](const Connection& connection) {
        const auto x = S::entry(a, a.cols, connection.column, 0);
        if (S::contributes(x)) deliver_drawn<S>(adder, args.delays, weights, connection, blockIdx.y * a.rows + row, x);
      });
}

template <class S, Distribution distribution> __device__ __forceinline__ void jit_gather(const JitArguments& args) {
  if constexpr (S::delays == Delays::none)
    sum_drawn_rows<S, distribution>(args);
  else
    deliver_drawn_rows<S, distribution>(args);
}

template <class S, Distribution distribution> __device__ __forceinline__ void jit_scatter(const JitArguments& args) {
  const ProductArguments& a = args.product;
  const RandomRows& matrix = args.matrix;
  const JitWeights<S, distribution> weights(a);
  const int shift = doublings<S>(a);
  const Adder<S, false> adder(a, shift);
  if (S::delays != Delays::none && !adder.ring.begun) return;
  const Int base = blockIdx.y * a.cols * a.n;
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int item = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; item < a.rows * matrix.pieces;
       item += threads) {
    const Int row = item / matrix.pieces;
    bool contributes = false;
    for (Int c = 0; c < a.n && !contributes; ++c) contributes = S::contributes(S::entry(a, a.rows, row, c));
    if (!contributes) continue;
    for_each_connection<distribution>(matrix, row, item % matrix.pieces, [&](const Connection& connection) {
      for (Int c = 0; c < a.n; ++c) {
        const auto x = S::entry(a, a.rows, row, c);
        if (S::contributes(x))
          deliver_drawn<S>(adder, args.delays, weights, connection, base + connection.column * a.n + c, x);
      }
    });
  }
}

}  // namespace event
}  // namespace spikeforge
