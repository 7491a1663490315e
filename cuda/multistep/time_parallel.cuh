// The time-parallel backward pass of the multistep loop (multistep.cuh): the warps of a block process the segments of
// the same neurons concurrently.
//
// The gradient of the states before a segment is an affine function of that after it, known once the segment is
// recomputed. Each warp computes its own; joined in a fixed order they give each warp the gradient after its segment.
//
// Short names in addition to those of neurons.cuh: G segments of a block.
#pragma once

#include "cuda/multistep/backward.cuh"

namespace spikeforge {

template <class Spec> struct MultistepTimeParallel : MultistepBackward<Spec> {
  using Base = MultistepBackward<Spec>;
  using Base::add_grad_states, Base::clear_grad_x, Base::cut, Base::finish_grad_params, Base::has_lengths,
      Base::has_start, Base::neurons_of, Base::steps_of, Base::store_grad_initial, Base::store_grad_params;
  using Base::C, Base::I, Base::P, Base::S, Base::W;
  using typename Base::Behind, typename Base::Cell, typename Base::Cells, typename Base::F, typename Base::Gradients,
      typename Base::Neurons, typename Base::OfStarts, typename Base::Segment;

  static constexpr int G = Spec::segments;  // segments of a block

  struct AffineMaps {
    F constant[room(S)][W][32];
    F linear[room(S)][room(S)][W][32];  // [to][from]
  };

  template <Behind behind>
  static __device__ __forceinline__ void find_map(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                  const Segment& segment, AffineMaps& map) {
    const int lane = threadIdx.x % 32;
    F unused_param[W][room(P)] = {}, unused_x[I][W];
    OfStarts unused_states;
    F grad[W][room(S)] = {};
#pragma unroll
    for (int u = C - 1; u >= 0; --u) {
      if (Spec::store_states && (behind == Behind::none || u < segment.length))
        add_grad_states(a, segment.t0 + u, n, grad);
      Base::template vjp<behind>(cells, segment, u, true, grad, unused_x, unused_param);
      cut(segment.starts, u, grad, unused_states);
    }
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int k = 0; k < W; ++k) map.constant[s][k][lane] = grad[k][s];
#pragma unroll
    for (int from = 0; from < S; ++from) {
#pragma unroll
      for (int s = 0; s < S; ++s)
#pragma unroll
        for (int k = 0; k < W; ++k) grad[k][s] = F(s == from);
#pragma unroll
      for (int u = C - 1; u >= 0; --u) {
        Base::template vjp<behind>(cells, segment, u, false, grad, unused_x, unused_param);
        cut(segment.starts, u, grad, unused_states);
      }
#pragma unroll
      for (int s = 0; s < S; ++s)
#pragma unroll
        for (int k = 0; k < W; ++k) map.linear[s][from][k][lane] = grad[k][s];
    }
  }

  // Without the constant, the map is applied to a column of another map.
  template <bool with_constant = true>
  static __device__ __forceinline__ void apply(const AffineMaps& map, F (&grad)[W][room(S)]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      F result[room(S)];
#pragma unroll
      for (int s = 0; s < S; ++s) {
        result[s] = with_constant ? map.constant[s][k][lane] : F(0);
#pragma unroll
        for (int from = 0; from < S; ++from) {
          // A zero gradient stays zero, even if the product of a segment's derivatives is infinite; so does an infinite
          // gradient across a branch that was not taken, whose derivative is 0.
          const F factor = map.linear[s][from][k][lane];
          const bool is_nothing = factor == F(0) || grad[k][from] == F(0);
          result[s] = select(is_nothing, result[s], fma(factor, grad[k][from], result[s]));
        }
      }
#pragma unroll
      for (int s = 0; s < S; ++s) grad[k][s] = result[s];
    }
  }

  static __device__ constexpr bool any_grad_param() {
    for (int j = 0; j < P; ++j)
      if (Spec::wants_grad_param(j)) return true;
    return false;
  }

  // Adds up the gradients of the segments of all warps, in order; the first warp receives the sum.
  static __device__ __forceinline__ void join_params(AffineMaps (&shared)[G], int g, Gradients& grad) {
#pragma unroll
    for (int j = 0; j < P; ++j)
      if (Cell::mixes_params ? any_grad_param() : Spec::wants_grad_param(j)) join(shared, g, grad.param, j);
    if constexpr (has_start)
      for (int s = 0; any_grad_param() && s < S; ++s) join(shared, g, grad.of_starts.state, s);
  }

  template <int count>
  static __device__ __forceinline__ void join(AffineMaps (&shared)[G], int g, F (&sums)[W][count], int j) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < W; ++k) shared[g].constant[0][k][lane] = sums[k][j];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < W; ++k)
      for (int other = 1; other < G; ++other) sums[k][j] += shared[other].constant[0][k][lane];
    __syncthreads();
  }

  // The map of a segment without steps is the identity.
  template <Behind behind>
  static __device__ __forceinline__ void backward_group(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                        int t0, AffineMaps (&maps)[G], Gradients& grad) {
    const int g = threadIdx.x / 32;
    Segment segment;
    Base::template load_rows<behind>(a, n, t0, segment);
    Base::template recompute<behind>(a, cells, n, segment);
    find_map<behind>(a, cells, n, segment, maps[g]);
    __syncthreads();
    F arriving[W][room(S)];
#pragma unroll 8
    for (int other = G - 1; other >= 0; --other) {
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) arriving[k][s] = select(other == g, grad.state[k][s], arriving[k][s]);
      apply(maps[other], grad.state);
    }
    __syncthreads();
    Base::template walk_back<behind>(a, cells, n, segment, arriving, grad.param, grad.of_starts);
  }

  // The block's warps have the same neurons, so that the result is uniform.
  static __device__ __forceinline__ int longest_of_warp(int steps) {
    if constexpr (has_lengths) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, steps, distance);
        steps = other > steps ? other : steps;
      }
    }
    return steps;
  }

  static __device__ __forceinline__ void backward_time_parallel(const BackwardArgs<Cell>& a) {
    __shared__ AffineMaps maps[G];
    const Neurons n = neurons_of(a, static_cast<long long>(blockIdx.x) * 32 + threadIdx.x % 32, a.neurons);
    const Cells cells(a, n);
    Gradients grad;
    const int steps = longest_of_warp(steps_of(a, n));
    if (!Spec::store_states) add_grad_states(a, 0, n, grad.state);
    const int g = threadIdx.x / 32;
    clear_grad_x(a, n, g, G);
    int t0 = (steps - 1) / (C * G) * (C * G) + g * C;
    if (Spec::ragged && t0 - g * C + C * G > steps) {
      backward_group<Behind::dropped>(a, cells, n, t0, maps, grad);
      t0 -= C * G;
    }
    for (; t0 >= 0; t0 -= C * G)
      backward_group<has_lengths ? Behind::dropped : Behind::none>(a, cells, n, t0, maps, grad);
    join_params(maps, g, grad);
    if (g == 0) {
      F own[W][room(S)] = {};
      store_grad_initial(a, n, grad, own);
      finish_grad_params(cells, own, grad);
      store_grad_params(a, n, grad);
    }
  }
};

}  // namespace spikeforge
