// The forward pass of the multistep loop (multistep.cuh).
//
// Short names in addition to those of neurons.cuh: K rows in flight; U rows per iteration.
#pragma once

#include "cuda/multistep/neurons.cuh"
#include "cuda/packed_row.cuh"

namespace spikeforge {

template <class Cell> struct ForwardArgs {
  long long steps, neurons;
  long long at_once;  // neurons per turn: the distance to the thread's next neurons; without turns, all neurons
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  void* y[Cell::n_outputs];
  // [N], or [T, N] if the sequences are stored; null: the last states are not stored
  void* states[room(Cell::n_states)];
  void* checkpoints;            // [(T - 1) / checkpoint, n_states, N]
  unsigned char* packed;        // y[0] as bits, [T, N * packed_bits / 8]
  unsigned char* packed_valid;  // set to 0 for a value that cannot be stored as bits
};

template <class Spec> struct MultistepForward : MultistepNeurons<Spec> {
  using Base = MultistepNeurons<Spec>;
  using Base::C, Base::I, Base::O, Base::S, Base::W;
  using Base::load_initial, Base::never, Base::restart, Base::steps_of, Base::store_state, Base::turns;
  using typename Base::Cell, typename Base::Cells, typename Base::F, typename Base::Input, typename Base::InputPack,
      typename Base::Neurons, typename Base::Turns;

  static constexpr int K = Spec::rows;
  static_assert((K & (K - 1)) == 0, "a power of two: step_and_store");

  struct ForwardCursors {
    Cursor<const Input> x[I];
    Cursor<Input> y[O];
    Cursor<F> states[room(S)];
    const bool has_states;
    Cursor<F> checkpoints;  // state by state
    PackedRow<Neurons, W, Spec::packed_bits> packed;

    // Starts at step t, the first of a segment.
    __device__ __forceinline__ ForwardCursors(const ForwardArgs<Cell>& a, Neurons n, long long t = 0)
        : has_states(a.states[0] != nullptr),
          checkpoints(Base::template rows_of<F>(a.checkpoints, t > 0 ? (t / C - 1) * S : 0, a.neurons, n)),
          packed(a.packed, a.packed_valid, a.neurons, n) {
#pragma unroll
      for (int c = 0; c < I; ++c) x[c] = Base::template rows_of<Input>(a.x[c], t, n);
#pragma unroll
      for (int c = 0; c < O; ++c) y[c] = Base::template rows_of<Input>(a.y[c], t, a.neurons, n);
#pragma unroll
      for (int s = 0; s < S; ++s)
        states[s] = Base::template rows_of<F>(a.states[s], Spec::store_states ? t : 0, a.neurons, n);
    }

    __device__ __forceinline__ void load_inputs(InputPack (&row)[I], bool there) {
#pragma unroll
      for (int c = 0; c < I; ++c) {
        const Input* at = x[c].next();
        if (there) row[c] = Neurons::load(at);
      }
    }

    __device__ __forceinline__ void stage_inputs(InputPack (&slot)[I], bool there) {
#pragma unroll
      for (int c = 0; c < I; ++c) {
        const Input* at = x[c].next();
        if (there) copy_to_shared<sizeof(InputPack)>(&slot[c], at);
      }
    }
  };

  // `u` is the index of the step in an iteration of the unrolled loop, of U steps: for most u the step is not a
  // checkpoint for any t.
  template <int U>
  static __device__ __forceinline__ void step_and_store(const Cells& cells, const InputPack (&x)[I], int t, int u,
                                                        ForwardCursors& to, F (&state)[W][room(S)]) {
    if (Spec::save && u % (C < U ? C : U) == 0 && t > 0 && (t & (C - 1)) == 0) {
#pragma unroll
      for (int s = 0; s < S; ++s) store_state(to.checkpoints.next(), state, s);
    }
    F in[I][W], out[O][W];
#pragma unroll
    for (int c = 0; c < I; ++c) x[c].unpack(in[c]);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      F x_k[I], y_k[O];
#pragma unroll
      for (int c = 0; c < I; ++c) x_k[c] = in[c][k];
      cells.step(k, t, x_k, state[k], y_k);
#pragma unroll
      for (int c = 0; c < O; ++c) out[c][k] = y_k[c];
    }
#pragma unroll
    for (int c = 0; c < O; ++c) {
      InputPack y;
      y.pack(out[c]);
      Neurons::store(to.y[c].next(), y);
      if (c == 0) to.packed.template store<F>(y);
    }
    if (Spec::store_states) {
#pragma unroll
      for (int s = 0; s < S; ++s) store_state(to.states[s].next(), state, s);
    }
  }

  static __device__ __forceinline__ void forward(const ForwardArgs<Cell>& a) {
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long at_once = Spec::in_turns ? a.at_once : a.neurons;
    if (thread < Neurons::threads(at_once)) forward(a, turns(a, thread, at_once));
  }

  static __device__ __forceinline__ void forward(const ForwardArgs<Cell>& a, Turns turns) {
    Neurons n = turns.first;
    ForwardCursors cursors(a, n);
    InputPack x[K][I];
    typename Base::template Starts<K> starts;
    load_first(a, n, cursors, x, starts);
    const Cells cells(a, n);
    walk_sequence(a, cells, n, cursors, x, starts);
    if (!Spec::in_turns) return;
    for (n = n.further(turns.apart); turns.have(n); n = n.further(turns.apart)) {
      ForwardCursors next(a, n);
      load_first(a, n, next, x, starts);
      walk_sequence(a, cells, n, next, x, starts);
    }
  }

  static __device__ __forceinline__ void load_first(const ForwardArgs<Cell>& a, Neurons n, ForwardCursors& from,
                                                    InputPack (&x)[K][I], typename Base::template Starts<K>& starts) {
#pragma unroll
    for (int u = 0; u < K; ++u) {
      from.load_inputs(x[u], u < steps_of(a, n));
      starts.load(n, u, u, u < steps_of(a, n));
    }
  }

  // Step t reads x[t % K], into which row t + K is loaded afterwards: K rows are in flight at any time.
  static __device__ __forceinline__ void walk_sequence(const ForwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                       ForwardCursors& cursors, InputPack (&x)[K][I],
                                                       typename Base::template Starts<K>& starts) {
    const int steps = steps_of(a, n);
    F state[W][room(S)];
    load_initial(a, cells, n, state);
    int t0 = 0;
    for (; t0 + 2 * K <= steps; t0 += K) {
#pragma unroll
      for (int u = 0; u < K; ++u) {
        restart(cells, starts, u, state);
        step_and_store<K>(cells, x[u], t0 + u, u, cursors, state);
        cursors.load_inputs(x[u], true);
        starts.load(n, u, t0 + u + K, true);
        if (u % 2 == 1 && never(a)) return;
      }
    }
    for (; t0 < steps; t0 += K) {
#pragma unroll
      for (int u = 0; u < K; ++u) {
        if (t0 + u < steps) restart(cells, starts, u, state);
        if (t0 + u < steps) step_and_store<K>(cells, x[u], t0 + u, u, cursors, state);
        cursors.load_inputs(x[u], t0 + u + K < steps);
        starts.load(n, u, t0 + u + K, t0 + u + K < steps);
      }
    }
    store_last(cursors, state);
#pragma unroll
    for (int c = 0; c < O; ++c) Base::template clear_behind<Input>(a, a.y[c], n);
#pragma unroll
    for (int s = 0; s < S; ++s)
      if (Spec::store_states) Base::template clear_behind<F>(a, a.states[s], n);
  }

  // Processes a thread's sequence of at most or exactly `most` steps; load(row, t) loads a row.
  template <int most, bool is_exact, class Load>
  static __device__ __forceinline__ void forward_rows(const ForwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                      Load&& load) {
    const int steps = static_cast<int>(a.steps);
    ForwardCursors cursors(a, n);
    F state[W][room(S)];
    load_initial(a, cells, n, state);
#pragma unroll
    for (int t = 0; t < most; ++t) {
      if (!is_exact && t >= steps) break;
      InputPack row[I];
      load(row, t);
      step_and_store<most>(cells, row, t, t, cursors, state);
    }
    store_last(cursors, state);
  }

  static __device__ __forceinline__ void store_last(const ForwardCursors& to, const F (&state)[W][room(S)]) {
    if (Spec::store_states || !to.has_states) return;
#pragma unroll
    for (int s = 0; s < S; ++s) store_state(to.states[s].at, state, s);
  }

  // ---- forward, staged: the rows in flight are in shared memory ----
  //
  // For few neurons, whose steps are much shorter than the latency of a row: more rows are in flight than fit in
  // registers, in a loop short enough for the instruction cache. Each thread stages only its neurons, so no thread
  // waits for another.

  static __device__ __forceinline__ void forward_staged(const ForwardArgs<Cell>& a) {
    constexpr int U = 8;  // rows per iteration
    static_assert(!Spec::staged || K >= 4 * U, "");
    __shared__ InputPack ring[Spec::staged ? K : 1][Spec::max_block][I];
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (thread >= Neurons::threads(a.neurons)) return;
    const Neurons n = Neurons::of(thread, a.neurons);
    const int steps = static_cast<int>(a.steps);
    ForwardCursors cursors(a, n);

#pragma unroll 1
    for (int t0 = 0; t0 < K; t0 += U) {
#pragma unroll
      for (int u = 0; u < U; ++u) cursors.stage_inputs(ring[t0 + u][threadIdx.x], t0 + u < steps);
      end_of_copies();
    }

    const Cells cells(a, n);
    F state[W][room(S)];
    load_initial(a, cells, n, state);

    InputPack x[U][I];
    wait_for_copies<K / U - 1>();
    read_ring(ring, 0, x);
    int t0 = 0;
    for (; t0 + U + K <= steps; t0 += U) staged_rows<true>(a, cells, ring, t0, cursors, x, state);
    for (; t0 + U <= steps; t0 += U) staged_rows<false>(a, cells, ring, t0, cursors, x, state);
#pragma unroll
    for (int u = 0; u < U - 1; ++u)
      if (t0 + u < steps) step_and_store<U>(cells, x[u], t0 + u, u, cursors, state);
    store_last(cursors, state);
  }

  template <bool more, int rows, int threads, int U>
  static __device__ __forceinline__ void staged_rows(const ForwardArgs<Cell>& a, const Cells& cells,
                                                     InputPack (&ring)[rows][threads][I], int t0,
                                                     ForwardCursors& cursors, InputPack (&x)[U][I],
                                                     F (&state)[W][room(S)]) {
    const int steps = static_cast<int>(a.steps);
    InputPack next[U][I];
    wait_for_copies<rows / U - 2>();
    read_ring(ring, t0 + U, next);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      step_and_store<U>(cells, x[u], t0 + u, u, cursors, state);
      cursors.stage_inputs(ring[(t0 & (rows - 1)) + u][threadIdx.x], more || t0 + u + K < steps);
      if (u % 2 == 1 && never(a)) return;
    }
    end_of_copies();
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int c = 0; c < I; ++c) x[u][c] = next[u][c];
  }

  template <int rows, int threads, int U>
  static __device__ __forceinline__ void read_ring(const InputPack (&ring)[rows][threads][I], int t0,
                                                   InputPack (&x)[U][I]) {
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int c = 0; c < I; ++c) x[u][c] = ring[(t0 & (rows - 1)) + u][threadIdx.x][c];
  }
};

}  // namespace spikeforge
