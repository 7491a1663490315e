// The forward pass of a recurrent layer on the GPU (recurrent.cuh).
#pragma once

#include <spikeforge/cuda/recurrent.cuh>

namespace spikeforge {

template <class Cell>
struct RecurrentForwardArgs {
  long long steps, neurons;  // of all samples
  long long batch, width;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  const void* weights;  // [width, width], from and to
  const void* first;    // [N]: the outputs before the first step
  void* y[Cell::n_outputs];
  void* states[room(Cell::n_states)];  // [N], or [T, N] where the sequences are stored
  void* checkpoints;                   // [(T - 1) / checkpoint, n_states, N]
  void* current;                       // [T, N]
};

template <class Spec>
struct RecurrentForward : Recurrent<Spec> {
  using Base = Recurrent<Spec>;
  using typename Base::Cell, typename Base::Cells, typename Base::Exchange, typename Base::F, typename Base::Lane,
      typename Base::Numbers, typename Base::Product, typename Base::States, typename Base::T, typename Base::Values;
  template <class E, int depth>
  using Ring = typename Base::template Ring<E, depth>;
  using Base::ahead, Base::C, Base::G, Base::I, Base::O, Base::S, Base::tiles, Base::W;
  using Base::load_initial, Base::pack_state;

  static __device__ __forceinline__ void forward(const RecurrentForwardArgs<Cell>& a) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* rest = memory;
    const Lane at(a);
    const Exchange exchange(rest, at);
    Product product;
    product.template load<false>(a.weights, at, rest);
    const Cells cells(a, at);
    F state[tiles][G][W][room(S)];
#pragma unroll
    for (int n = 0; n < tiles; ++n) load_initial(a, cells, at, n, state[n]);
    Ring<T, ahead> x[I];
#pragma unroll
    for (int i = 0; i < I; ++i) x[i] = Ring<T, ahead>(rest);

    const int steps = static_cast<int>(a.steps);
    const auto load = [&](int t) {
#pragma unroll
      for (int i = 0; i < I; ++i)
        if (t < steps) x[i].load(t, row_of<T>(a.x[i], t), at);
      end_of_copies();
    };
#pragma unroll 1
    for (int t = 0; t < ahead; ++t) load(t);
    exchange.open([&](int sample, int h) {
      const int b = at.first_tile * 8 + sample;
      return Spec::has_first && b < at.batch && h < at.width
                 ? convert<F>(convert<float>(static_cast<const T*>(a.first)[b * at.width + h]))
                 : F(0);
    });

#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
      wait_for_copies<ahead - 1>();
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
        product(exchange.memory + exchange.offset(t - 1, n), at, n, sums);
        step_and_store(a, cells, at, t, n, in, sums, state[n], [&](int g, const Values& y) {
          if (t + 1 < steps) exchange.put(at, t, n, g, y);
        });
      }
      load(t + ahead);
      exchange.end_of_step();
    }
    if (!Spec::store_states)
#pragma unroll
      for (int n = 0; n < tiles; ++n)
        if (n < at.count) store_states(a, at, n, state[n], 0);
    exchange.close();
  }

  template <class Tell>
  static __device__ __forceinline__ void step_and_store(const RecurrentForwardArgs<Cell>& a, const Cells& cells,
                                                        const Lane& at, int t, int n, F (&in)[I][G][W],
                                                        const Values& sums, States& state, const Tell& tell) {
    F out[O][G][W];
    Numbers current[G];
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int j = 0; j < W; ++j) in[Spec::into][g][j] += sums[g][j];
      current[g].pack(in[Spec::into][g]);
      current[g].unpack(in[Spec::into][g]);
    }
    if (Spec::save && t > 0 && t % C == 0) store_checkpoint(a, at, n, state, t / C - 1);
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        F x[I], y[O];
#pragma unroll
        for (int i = 0; i < I; ++i) x[i] = in[i][g][j];
        cells[j].step(x, state[g][j], y);
#pragma unroll
        for (int o = 0; o < O; ++o) out[o][g][j] = y[o];
      }
      tell(g, out[0]);
    }
    const long long row = times(t, a.neurons);
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (Spec::save) at.store(static_cast<T*>(a.current) + row, n, g, current[g]);
#pragma unroll
      for (int o = 0; o < O; ++o) {
        Numbers y;
        y.pack(out[o][g]);
        at.store(static_cast<T*>(a.y[o]) + row, n, g, y);
      }
    }
    if (Spec::store_states) store_states(a, at, n, state, row);
  }

  static __device__ __forceinline__ void store_states(const RecurrentForwardArgs<Cell>& a, const Lane& at, int n,
                                                      const States& state, long long row) {
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int g = 0; g < G; ++g) at.store(static_cast<F*>(a.states[s]) + row, n, g, pack_state(state, g, s));
  }

  static __device__ __forceinline__ void store_checkpoint(const RecurrentForwardArgs<Cell>& a, const Lane& at, int n,
                                                          const States& state, int which) {
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int g = 0; g < G; ++g)
        at.store(static_cast<F*>(a.checkpoints) + times(which * S + s, a.neurons), n, g, pack_state(state, g, s));
  }
};

}  // namespace spikeforge
