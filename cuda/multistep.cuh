// The multistep loop on the GPU: the one loop over T that runs a cell, forward and backward. It knows loads, stores,
// widths, prefetch and checkpoints, and nothing of any neuron. A thread owns `Spec::width` neighbouring neurons for the
// whole sequence.
//
// A Spec, printed by csrc/runtime/kernel_spec.cpp, decides at compile time:
//   Cell, Input (the type of x and y), Compute (of states and arithmetic)
//   width        neurons a thread, which is also the width of a load
//   rows         forward: rows of x in flight while as many are computed
//   checkpoint   steps between two saved states, and the length of the backward pass's segments
//   save, store_states, and for each parameter, state and gradient whether it is there and of what type
//
// Arguments are sequences of 8-byte words in the order of the structs below; the host writes them in that order.
#pragma once

#include <spikeforge/neuron/cell.h>
#include <spikeforge/neuron/options.h>
#include <spikeforge/neuron/surrogate.h>
#include <spikeforge/cuda/rows.cuh>

namespace spikeforge {

template <class Cell>
struct ForwardArgs {
  long long steps, neurons;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[Cell::n_states];
  ParamSource params[Cell::n_params];
  void* y[Cell::n_outputs];
  void* states[Cell::n_states];  // [N], or [T, N] where the sequences are stored
  void* checkpoints;             // [(T - 1) / checkpoint, n_states, N]
};

template <class Cell>
struct BackwardArgs {
  long long steps, neurons;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[Cell::n_states];
  ParamSource params[Cell::n_params];
  Rows grad_y[Cell::n_outputs];
  Rows grad_states[Cell::n_states];
  const void* checkpoints;
  void* grad_x[Cell::n_inputs];
  void* grad_initial[Cell::n_states];
  void* grad_params[Cell::n_params];  // [N] each: one value a neuron, reduced afterwards
};

template <int... k>
struct Indices {};
template <int n, int... k>
struct IndicesBelow : IndicesBelow<n - 1, n - 1, k...> {};
template <int... k>
struct IndicesBelow<0, k...> {
  using type = Indices<k...>;
};

template <class Spec>
struct Multistep {
  using Cell = typename Spec::Cell;
  using F = typename Spec::Compute;
  using Input = typename Spec::Input;
  using Options = typename Spec::Options;
  static constexpr int W = Spec::width;
  static constexpr int C = Spec::checkpoint;
  static_assert((C & (C - 1)) == 0, "a power of two");
  static constexpr int I = Cell::n_inputs, O = Cell::n_outputs, S = Cell::n_states, P = Cell::n_params;
  using InputPack = Pack<Input, W>;
  using StatePack = Pack<F, W>;

  static __device__ __forceinline__ long long first_neuron() {
    return (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  }

  template <class Args>
  static __device__ __forceinline__ long long row_offset(const Args& a, int t, long long i) {
    return t * a.neurons + i;
  }

  template <class Args>
  static __device__ __forceinline__ Cell make_cell(const Args& a, long long i) {
    F params[P];
#pragma unroll
    for (int j = 0; j < P; ++j) params[j] = load_param<F>(Spec::param(j), a.params[j], i, a.neurons);
    return Cell(params, typename Spec::Surrogate(a.constants), Options{});
  }

  struct Cells {
    Cell cell[W];

    template <class Args>
    __device__ __forceinline__ Cells(const Args& a, long long i) : Cells(a, i, typename IndicesBelow<W>::type{}) {}

   private:
    template <class Args, int... k>
    __device__ __forceinline__ Cells(const Args& a, long long i, Indices<k...>) : cell{make_cell(a, i + k)...} {}
  };

  template <class Args>
  static __device__ __forceinline__ void load_initial(const Args& a, const Cell& cell, long long i, F* state) {
    cell.initial(state);
#pragma unroll
    for (int s = 0; s < S; ++s)
      if (Spec::initial(s) != Source::absent) state[s] = load_as<F>(Spec::initial(s), a.initial[s], i);
  }

  // ---- forward ----

  static constexpr int K = Spec::rows;

  static __device__ __forceinline__ void load_inputs(const ForwardArgs<Cell>& a, int t0, long long i,
                                                     InputPack (&x)[K][I]) {
#pragma unroll
    for (int u = 0; u < K; ++u)
#pragma unroll
      for (int c = 0; c < I; ++c)
        if (t0 + u < a.steps) x[u][c] = load_row<Input, W>(a.x[c], t0 + u, i);
  }

  static __device__ __forceinline__ void store_states(void* const* target, long long offset, const F (&state)[W][S]) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      StatePack pack;
#pragma unroll
      for (int k = 0; k < W; ++k) pack.lane[k] = state[k][s];
      store_row<F, W>(target[s], offset, pack);
    }
  }

  static __device__ __forceinline__ void store_checkpoint(const ForwardArgs<Cell>& a, int t, long long i,
                                                          const F (&state)[W][S]) {
    F* base = static_cast<F*>(a.checkpoints) + static_cast<long long>(t / C - 1) * S * a.neurons;
    void* rows[S];
#pragma unroll
    for (int s = 0; s < S; ++s) rows[s] = base + s * a.neurons;
    store_states(rows, i, state);
  }

  static __device__ __forceinline__ void step_and_store(const ForwardArgs<Cell>& a, const Cell (&cell)[W],
                                                        const InputPack (&x)[I], int t, long long i, F (&state)[W][S]) {
    InputPack y[O];
#pragma unroll
    for (int k = 0; k < W; ++k) {
      F in[I], out[O];
#pragma unroll
      for (int c = 0; c < I; ++c) in[c] = convert<F>(x[c].lane[k]);
      cell[k].step(in, state[k], out);
#pragma unroll
      for (int c = 0; c < O; ++c) y[c].lane[k] = convert<Input>(out[c]);
    }
#pragma unroll
    for (int c = 0; c < O; ++c) store_row<Input, W>(a.y[c], row_offset(a, t, i), y[c]);
    if (Spec::store_states) store_states(a.states, row_offset(a, t, i), state);
  }

  static __device__ __forceinline__ void forward(const ForwardArgs<Cell>& a) {
    const long long i = first_neuron();
    if (i >= a.neurons) return;

    const int steps = static_cast<int>(a.steps);

    InputPack x[K][I], next[K][I];
    load_inputs(a, 0, i, x);

    Cells cells(a, i);
    F state[W][S];
#pragma unroll
    for (int k = 0; k < W; ++k) load_initial(a, cells.cell[k], i + k, state[k]);

    for (int t0 = 0; t0 < steps; t0 += K) {
      load_inputs(a, t0 + K, i, next);
#pragma unroll
      for (int u = 0; u < K; ++u) {
        const int t = t0 + u;
        if (t < steps) {
          if (Spec::save && t > 0 && (t & (C - 1)) == 0) store_checkpoint(a, t, i, state);
          step_and_store(a, cells.cell, x[u], t, i, state);
        }
      }
#pragma unroll
      for (int u = 0; u < K; ++u)
#pragma unroll
        for (int c = 0; c < I; ++c) x[u][c] = next[u][c];
    }
    if (!Spec::store_states) store_states(a.states, i, state);
  }

  // ---- backward: segments from the last to the first, each recomputed from its checkpoint ----

  static __device__ __forceinline__ void load_segment_state(const BackwardArgs<Cell>& a, const Cell (&cell)[W], int t0,
                                                            long long i, F (&state)[W][S]) {
    if (t0 == 0) {
#pragma unroll
      for (int k = 0; k < W; ++k) load_initial(a, cell[k], i + k, state[k]);
      return;
    }
    const F* base = static_cast<const F*>(a.checkpoints) + static_cast<long long>(t0 / C - 1) * S * a.neurons;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const StatePack pack = *reinterpret_cast<const StatePack*>(base + s * a.neurons + i);
#pragma unroll
      for (int k = 0; k < W; ++k) state[k][s] = pack.lane[k];
    }
  }

  // The gradient of the states after step t, as far as the caller sent one.
  static __device__ __forceinline__ void add_grad_states(const BackwardArgs<Cell>& a, int t, long long i,
                                                         F (&grad_state)[W][S]) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (!Spec::has_grad_state(s)) continue;
      const StatePack pack = load_row<F, W>(a.grad_states[s], t, i, Spec::one_grad_state(s));
#pragma unroll
      for (int k = 0; k < W; ++k) grad_state[k][s] += pack.lane[k];
    }
  }

  static __device__ __forceinline__ void vjp_and_store(const BackwardArgs<Cell>& a, const Cell (&cell)[W],
                                                       const InputPack (&x)[I], const InputPack (&grad_y)[O],
                                                       const F (&before)[W][S], int t, long long i,
                                                       F (&grad_state)[W][S], F (&grad_param)[W][P]) {
    if (Spec::store_states) add_grad_states(a, t, i, grad_state);
    InputPack grad_x[I];
#pragma unroll
    for (int k = 0; k < W; ++k) {
      F in[I], grad_in[I], grad_out[O];
#pragma unroll
      for (int c = 0; c < I; ++c) in[c] = convert<F>(x[c].lane[k]);
#pragma unroll
      for (int c = 0; c < O; ++c) grad_out[c] = Spec::has_grad_y(c) ? convert<F>(grad_y[c].lane[k]) : F(0);
      cell[k].vjp(in, before[k], grad_out, grad_state[k], grad_in, grad_param[k]);
#pragma unroll
      for (int c = 0; c < I; ++c) grad_x[c].lane[k] = convert<Input>(grad_in[c]);
    }
#pragma unroll
    for (int c = 0; c < I; ++c)
      if (Spec::wants_grad_x(c)) store_row<Input, W>(a.grad_x[c], row_offset(a, t, i), grad_x[c]);
  }

  static __device__ __forceinline__ void backward(const BackwardArgs<Cell>& a) {
    const long long i = first_neuron();
    if (i >= a.neurons) return;

    const Cells cells(a, i);
    F grad_state[W][S], grad_param[W][P];
#pragma unroll
    for (int k = 0; k < W; ++k) {
#pragma unroll
      for (int s = 0; s < S; ++s) grad_state[k][s] = F(0);
#pragma unroll
      for (int j = 0; j < P; ++j) grad_param[k][j] = F(0);
    }
    if (!Spec::store_states) add_grad_states(a, 0, i, grad_state);

    const int steps = static_cast<int>(a.steps);
    for (int t0 = (steps - 1) & ~(C - 1); t0 >= 0; t0 -= C) {
      InputPack x[C][I], grad_y[C][O];
      F before[C][W][S], state[W][S];
#pragma unroll
      for (int u = 0; u < C; ++u)
        if (t0 + u < steps) {
#pragma unroll
          for (int c = 0; c < I; ++c) x[u][c] = load_row<Input, W>(a.x[c], t0 + u, i);
#pragma unroll
          for (int c = 0; c < O; ++c)
            if (Spec::has_grad_y(c)) grad_y[u][c] = load_row<Input, W>(a.grad_y[c], t0 + u, i, Spec::one_grad_y(c));
        } else {
#pragma unroll
          for (int c = 0; c < I; ++c) x[u][c] = InputPack{};
        }
      load_segment_state(a, cells.cell, t0, i, state);
#pragma unroll
      for (int u = 0; u < C; ++u)
#pragma unroll
        for (int k = 0; k < W; ++k) {
          F in[I], out[O];
#pragma unroll
          for (int s = 0; s < S; ++s) before[u][k][s] = state[k][s];
#pragma unroll
          for (int c = 0; c < I; ++c) in[c] = convert<F>(x[u][c].lane[k]);
          if (u + 1 < C) cells.cell[k].step(in, state[k], out);
        }
#pragma unroll
      for (int u = C - 1; u >= 0; --u)
        if (t0 + u < steps) vjp_and_store(a, cells.cell, x[u], grad_y[u], before[u], t0 + u, i, grad_state, grad_param);
    }
    store_grads(a, cells.cell, i, grad_state, grad_param);
  }

  static __device__ __forceinline__ void store_grads(const BackwardArgs<Cell>& a, const Cell (&cell)[W], long long i,
                                                     const F (&grad_state)[W][S], F (&grad_param)[W][P]) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      F grad_own[S];  // of the states that the cell made itself
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const bool given = Spec::initial(s) != Source::absent;
        grad_own[s] = given ? F(0) : grad_state[k][s];
        if (given && Spec::wants_grad_initial(s))
          store_as<F>(Spec::initial(s), a.grad_initial[s], i + k, grad_state[k][s]);
      }
      cell[k].finish(grad_own, grad_param[k]);
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (Spec::wants_grad_param(j)) static_cast<F*>(a.grad_params[j])[i + k] = grad_param[k][j];
    }
  }
};

}  // namespace spikeforge
