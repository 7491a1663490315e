// The forward pass of a recurrent layer on the GPU (recurrent.cuh).
#pragma once

#include "cuda/recurrent/recurrent.cuh"

namespace spikeforge {

template <class Cell> struct RecurrentForwardArgs {
  long long steps, neurons;  // neurons of all samples
  long long batch, width;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  const void* weights;  // [width, width], the row is the source
  void* messages;       // Exchange
  const void* first;    // [delay, N]: the outputs before the first step
  void* y[Cell::n_outputs];
  void* states[room(Cell::n_states)];  // [N], or [T, N] if the sequences are stored
  void* checkpoints;                   // [(T - 1) / checkpoint, n_states, N]
  void* current;                       // [T, N]
};

template <class Spec> struct RecurrentForward : Recurrent<Spec> {
  using Base = Recurrent<Spec>;
  using typename Base::Cell, typename Base::Cells, typename Base::Exchange, typename Base::F, typename Base::Lane,
      typename Base::Numbers, typename Base::Product, typename Base::Samples, typename Base::StateNumbers,
      typename Base::States, typename Base::T, typename Base::Values;
  template <class E, int depth> using Ring = typename Base::template Ring<E, depth>;
  using Base::ahead, Base::C, Base::deferred, Base::delay, Base::G, Base::I, Base::O, Base::S, Base::tiles,
      Base::unrolled, Base::W;
  using Base::drop_after_restart, Base::load_initial, Base::pack_state, Base::restart;

  static __device__ __forceinline__ void forward(const RecurrentForwardArgs<Cell>& a) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* rest = Base::kept(memory);
    const Lane at(a);
    const Exchange exchange(rest, a.messages, at);
    Product product;
    product.template load<false>(a.weights, at, rest);
    const Cells cells(a, at);
    Samples samples(a, at);
    F state[tiles][G][W][room(S)];
#pragma unroll
    for (int n = 0; n < tiles; ++n) load_initial(a, cells, at, n, state[n]);
    Ring<T, ahead> x[I];
#pragma unroll
    for (int i = 0; i < I; ++i) x[i] = Ring<T, ahead>(rest);

    const int steps = samples.steps;
    WalkedRows<const T> next[I];
#pragma unroll
    for (int i = 0; i < I; ++i) next[i] = {a.x[i], 0, 1};
    const auto load = [&](int t) {
#pragma unroll
      for (int i = 0; i < I; ++i) {
        if (t < steps) x[i].load(t, next[i].row, at);
        next[i].next();
      }
      end_of_copies();
    };
#pragma unroll 1
    for (int t = 0; t < ahead; ++t) load(t);
    exchange.open([&](int t, int sample, int h) {
      const int b = at.first_tile * 8 + sample;
      return Spec::has_first && b < at.batch && h < at.width
                 ? convert<F>(
                       convert<float>((static_cast<const T*>(a.first) + times(t + delay, a.neurons))[b * at.width + h]))
                 : F(0);
    });

    Results results(a);
#pragma unroll 1
    for (int from = 0; from < steps; from += unrolled)
#pragma unroll
      for (int half = 0; half < unrolled; ++half) {
        const int t = from + half;
        if (half > 0 && t >= steps) break;
        wait_for_copies<ahead - 1>();
        if (t % Samples::word == 0) samples.read_starts(a, at, t);
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
          if (n > 0 && n >= at.count) break;
          F in[I][G][W];
#pragma unroll
          for (int i = 0; i < I; ++i)
#pragma unroll
            for (int g = 0; g < G; ++g) x[i].slot(t, n, g).unpack(in[i][g]);
          exchange.wait(t, n);
          Values sums;
          product(exchange.memory, exchange.fed_back(t, n), at, n, sums, [&] {
            exchange.expect(t, n);
            if (Spec::save) store_checkpoint(a, at, n, state[n], t / C - 1, t > 0 && t % C == 0);
            if (!deferred) return;
            results.store(at, n, unrolled - 1 - half);  // of the previous step; at the first step, arbitrary values
            load(t + ahead);
          });
#pragma unroll
          for (int g = 0; g < G; ++g) samples.block_across_restart(n, g, samples.starts_before(t, n, g));
          drop_after_restart(samples, n, sums);
          step_and_store(a, results, half, cells, at, samples, t, n, in, sums, state[n],
                         [&](int g, const Values& y) { exchange.put(at, t, n, g, y); });
          exchange.end_of_tile(at, t, n);
        }
        if (!deferred) load(t + ahead);
        if (!deferred || t > 0) results.next();
        exchange.end_of_step();
      }
#pragma unroll
    for (int half = 0; half < (deferred ? unrolled : 0); ++half)
      results.store(at, 0, half, steps > 0 && (steps - 1) % unrolled == half);
    if (!Spec::store_states)
#pragma unroll
      for (int n = 0; n < tiles; ++n)
        if (n < at.count) store_states(a, at, n, state[n], 0);
#pragma unroll
    for (int o = 0; o < O; ++o) Base::template clear_behind<T>(a, at, samples, a.y[o]);
    if (Spec::store_states)
#pragma unroll
      for (int s = 0; s < S; ++s) Base::template clear_behind<F>(a, at, samples, a.states[s]);
    exchange.close(at, steps);
  }

  // The values that each step stores, and their rows.
  struct Results {
    WalkedRows<T> current_row, y_rows[O];
    Numbers current[unrolled][G], y[unrolled][O][G];

    __device__ __forceinline__ explicit Results(const RecurrentForwardArgs<Cell>& a)
        : current_row(a.current, a.neurons, 0, 1) {
#pragma unroll
      for (int o = 0; o < O; ++o) y_rows[o] = {a.y[o], a.neurons, 0, 1};
#pragma unroll
      for (int i = 0; i < unrolled * G; ++i) {
        current[i / G][i % G] = {};
#pragma unroll
        for (int o = 0; o < O; ++o) y[i / G][o][i % G] = {};
      }
    }
    __device__ __forceinline__ void store(const Lane& at, int n, int half, bool wanted = true) const {
#pragma unroll
      for (int g = 0; g < G; ++g) {
        if (Spec::save) at.store_unbranched(current_row.row, n, g, current[half][g], wanted);
#pragma unroll
        for (int o = 0; o < O; ++o) at.store_unbranched(y_rows[o].row, n, g, y[half][o][g], wanted);
      }
    }
    __device__ __forceinline__ void next() {
      current_row.next();
#pragma unroll
      for (int o = 0; o < O; ++o) y_rows[o].next();
    }
  };

  template <class Send>
  static __device__ __forceinline__ void step_and_store(const RecurrentForwardArgs<Cell>& a, Results& results, int half,
                                                        const Cells& cells, const Lane& at, const Samples& samples,
                                                        int t, int n, F (&in)[I][G][W], const Values& sums,
                                                        States& state, const Send& send) {
    F out[O][G][W];
    auto& current = results.current[half];
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int j = 0; j < W; ++j) in[Spec::into][g][j] = Product::add(sums[g][j], in[Spec::into][g][j]);
      current[g].pack(in[Spec::into][g]);
      current[g].unpack(in[Spec::into][g]);
    }
    restart(cells, samples, t, n, state);
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        F x[I], y[O];
#pragma unroll
        for (int i = 0; i < I; ++i) x[i] = in[i][g][j];
        step(cells[j], samples.has(t, n, g), x, state[g][j], y);
#pragma unroll
        for (int o = 0; o < O; ++o) out[o][g][j] = y[o];
      }
      send(g, out[0]);
    }
#pragma unroll
    for (int o = 0; o < O; ++o)
#pragma unroll
      for (int g = 0; g < G; ++g) results.y[half][o][g].pack(out[o][g]);
    if (!deferred) results.store(at, n, half);
    if (Spec::store_states)
      store_states(a, at, n, state, times(t, a.neurons), [&](int g) { return samples.has(t, n, g); });
  }

  // Runs a step. After the end of a sample, states do not change and outputs are zero.
  static __device__ __forceinline__ void step(const Cell& cell, bool there, const F* x, F* state, F* y) {
    if constexpr (!Samples::has_lengths) {
      cell.step(x, state, y);
    } else {
      F next[room(S)];
#pragma unroll
      for (int s = 0; s < S; ++s) next[s] = state[s];
      cell.step(x, next, y);
#pragma unroll
      for (int s = 0; s < S; ++s) state[s] = select(there, next[s], state[s]);
#pragma unroll
      for (int o = 0; o < O; ++o) y[o] = select(there, y[o], F(0));
    }
  }

  static __device__ __forceinline__ void store_states(const RecurrentForwardArgs<Cell>& a, const Lane& at, int n,
                                                      const States& state, long long row) {
    store_states(a, at, n, state, row, [](int) { return true; });
  }

  // Clears the values of samples that do not exist.
  template <class IsThere>
  static __device__ __forceinline__ void store_states(const RecurrentForwardArgs<Cell>& a, const Lane& at, int n,
                                                      const States& state, long long row, const IsThere& is_there) {
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const StateNumbers numbers = is_there(g) ? pack_state(state, g, s) : StateNumbers{};
        at.store(static_cast<F*>(a.states[s]) + row, n, g, numbers);
      }
  }

  static __device__ __forceinline__ void store_checkpoint(const RecurrentForwardArgs<Cell>& a, const Lane& at, int n,
                                                          const States& state, int which, bool wanted) {
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int g = 0; g < G; ++g)
        at.store_unbranched(static_cast<F*>(a.checkpoints) + times(which * S + s, a.neurons), n, g,
                            pack_state(state, g, s), wanted);
  }
};

}  // namespace spikeforge
