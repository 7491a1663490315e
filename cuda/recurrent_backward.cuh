// The backward pass of a recurrent layer on the GPU (recurrent.cuh): steps from the last to the first. Ahead of every
// `history` of them, while what the last one sent is on its way, the states before each are recomputed from the
// checkpoint at or before them.
#pragma once

#include <spikeforge/cuda/recurrent.cuh>

namespace spikeforge {

template <class Cell>
struct RecurrentBackwardArgs {
  long long steps, neurons;
  long long batch, width;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];  // with the current
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  const void* weights;
  Rows grad_y[Cell::n_outputs];
  Rows grad_states[room(Cell::n_states)];
  const void* checkpoints;
  void* grad_x[Cell::n_inputs];
  void* grad_initial[room(Cell::n_states)];
  void* grad_params[room(Cell::n_params)];  // [N]: of neurons, at their samples or at one of several
};

template <class Spec>
struct RecurrentBackward : Recurrent<Spec> {
  using Base = Recurrent<Spec>;
  using typename Base::Cell, typename Base::Cells, typename Base::Exchange, typename Base::F, typename Base::Lane,
      typename Base::Numbers, typename Base::Product, typename Base::Samples, typename Base::StateNumbers,
      typename Base::States, typename Base::T, typename Base::Values;
  template <class E, int depth>
  using Ring = typename Base::template Ring<E, depth>;
  using Base::ahead, Base::alone, Base::blocks, Base::C, Base::delay, Base::G, Base::I, Base::O, Base::P, Base::S,
      Base::shape, Base::tiles, Base::W;
  using Base::drop_unheard, Base::load_initial, Base::pack_state, Base::restart;

  static constexpr int L = shape.history, input_rows = shape.input_rows;

  // The next to come into the rings.
  struct RowsBack {
    WalkedRows<const T> x[I], grad_y[O];
    WalkedRows<const F> grad_states[room(S)];

    __device__ __forceinline__ RowsBack(const RecurrentBackwardArgs<Cell>& a, int last) {
#pragma unroll
      for (int i = 0; i < I; ++i) x[i] = {a.x[i], last, -1};
#pragma unroll
      for (int o = 0; o < O; ++o) grad_y[o] = {a.grad_y[o], last, -1};
#pragma unroll
      for (int s = 0; s < S; ++s) grad_states[s] = {a.grad_states[s], last, -1};
    }
  };

  struct BackwardRings {
    Ring<T, input_rows> x[I];
    Ring<T, ahead> grad_y[O];
    Ring<F, L> states[room(S)];  // before each step
    Ring<F, 2> checkpoints[room(S)];
    Ring<F, ahead> grad_states[room(S)];

    __device__ __forceinline__ explicit BackwardRings(unsigned char* memory) {
#pragma unroll
      for (int i = 0; i < I; ++i) x[i] = Ring<T, input_rows>(memory);
#pragma unroll
      for (int o = 0; o < O; ++o) grad_y[o] = Ring<T, ahead>(memory);
#pragma unroll
      for (int s = 0; s < S; ++s) {
        states[s] = Ring<F, L>(memory);
        checkpoints[s] = Ring<F, 2>(memory);
      }
      if (Spec::store_states)
#pragma unroll
        for (int s = 0; s < S; ++s) grad_states[s] = Ring<F, ahead>(memory);
    }

    // Step t's, which `rows` stand at, and move on from.
    __device__ __forceinline__ void load_x(const Lane& at, int t, RowsBack& rows) const {
      if (t >= 0)
#pragma unroll
        for (int i = 0; i < I; ++i) x[i].load(t, rows.x[i].row, at);
#pragma unroll
      for (int i = 0; i < I; ++i) rows.x[i].next();
    }

    __device__ __forceinline__ void load_grads(const Lane& at, int t, RowsBack& rows) const {
      if (t >= 0) {
#pragma unroll
        for (int o = 0; o < O; ++o)
          if (Spec::has_grad_y(o)) load_row(grad_y[o], t, rows.grad_y[o].row, Spec::one_grad_y(o), at);
#pragma unroll
        for (int s = 0; s < S; ++s)
          if (Spec::store_states && Spec::has_grad_state(s))
            load_row(grad_states[s], t, rows.grad_states[s].row, Spec::one_grad_state(s), at);
      }
#pragma unroll
      for (int o = 0; o < O; ++o) rows.grad_y[o].next();
#pragma unroll
      for (int s = 0; s < S; ++s) rows.grad_states[s].next();
    }

    template <class E, int depth>
    static __device__ __forceinline__ void load_row(const Ring<E, depth>& ring, int t, const E* row, bool is_one,
                                                    const Lane& at) {
      if (is_one)
        ring.fill(t, *row, at);
      else
        ring.load(t, row, at);
    }

    // The states before step C * which.
    __device__ __forceinline__ void load_checkpoint(const RecurrentBackwardArgs<Cell>& a, const Lane& at,
                                                    int which) const {
      if (which < 1) return;
#pragma unroll
      for (int s = 0; s < S; ++s)
        checkpoints[s].load(which, static_cast<const F*>(a.checkpoints) + times((which - 1) * S + s, a.neurons), at);
    }
  };

  // Of the states before steps t - t % L to t, of a tile.
  static __device__ __forceinline__ void recompute(const RecurrentBackwardArgs<Cell>& a, const Cells& cells,
                                                   const Lane& at, const BackwardRings& rings, const Samples& samples,
                                                   int t, int n) {
    const int kept_from = t / L * L;
    States state;
    int u = t / C * C;
    if (u == 0) {
      load_initial(a, cells, at, n, state);
    } else {
#pragma unroll
      for (int s = 0; s < S; ++s)
#pragma unroll
        for (int g = 0; g < G; ++g) {
          const StateNumbers numbers = rings.checkpoints[s].slot(u / C, n, g);
#pragma unroll
          for (int j = 0; j < W; ++j) state[g][j][s] = numbers.lane[j];
        }
    }
    Numbers next[I][G];
    const auto read_inputs = [&](int u) {
#pragma unroll
      for (int i = 0; i < I; ++i)
#pragma unroll
        for (int g = 0; g < G; ++g) next[i][g] = rings.x[i].slot(u, n, g);
    };
    read_inputs(u);
#pragma unroll 1
    for (;; ++u) {
      F in[I][G][W];
#pragma unroll
      for (int i = 0; i < I; ++i)
#pragma unroll
        for (int g = 0; g < G; ++g) next[i][g].unpack(in[i][g]);
      if (u < t) read_inputs(u + 1);  // ahead of what is written: the compiler moves no load across
      restart(cells, samples, u, n, state);
      if (u >= kept_from)
#pragma unroll
        for (int s = 0; s < S; ++s)
#pragma unroll
          for (int g = 0; g < G; ++g) rings.states[s].slot(u, n, g) = pack_state(state, g, s);
      if (u == t) return;
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int j = 0; j < W; ++j) {
          F x[I], y[O];
#pragma unroll
          for (int i = 0; i < I; ++i) x[i] = in[i][g][j];
          cells[j].step(x, state[g][j], y);
        }
    }
  }

  struct Gradients {
    F state[tiles][G][W][room(S)];
    F param[W][room(P)];                               // of all samples of the lane
    F at_starts[Samples::has_start ? W : 1][room(S)];  // of the cell's own states there, likewise
  };

  static __device__ __forceinline__ void backward(const RecurrentBackwardArgs<Cell>& a) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* rest = Base::kept(memory);
    const Lane at(a);
    const Exchange exchange(rest, at);
    Product product;
    product.template load<true>(a.weights, at, rest);
    const BackwardRings rings(rest);
    const Cells cells(a, at);
    Samples samples(a, at);
    Gradients grad = {};
    if (!Spec::store_states)
#pragma unroll
      for (int n = 0; n < tiles; ++n) add_last_grad_states(a, at, n, grad.state[n]);

    const int last = samples.steps - 1;
    // Rows come in the order in which they are used: at step t those of t - ahead, and of the inputs as many before as
    // a recomputation may need.
    RowsBack rows(a, last);
#pragma unroll 1
    for (int t = last; t > last - (C - 1) - ahead; --t) rings.load_x(at, t, rows);
#pragma unroll 1
    for (int t = last; t > last - ahead; --t) rings.load_grads(at, t, rows);
    rings.load_checkpoint(a, at, last / C);
    rings.load_checkpoint(a, at, last / C - 1);
    end_of_copies();
    wait_for_copies<0>();
    exchange.open([](int, int, int) { return F(0); });

    constexpr int on_their_way = ahead < C ? ahead - 1 : C - 1;
    WalkedRows<T> grad_x[I];
#pragma unroll
    for (int i = 0; i < I; ++i) grad_x[i] = {a.grad_x[i], a.neurons, last, -1};
#pragma unroll 1
    for (int t = last; t >= 0; --t) {
      const int k = last - t;
      wait_for_copies<on_their_way>();
      if (k == 0 || t % Samples::word == Samples::word - 1) samples.read_starts(a, at, t);
      if (k == 0 || t % L == L - 1)
#pragma unroll 1
        for (int n = 0; n < at.count; ++n) recompute(a, cells, at, rings, samples, t, n);
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        if (n > 0 && n >= at.count) break;
        Step step;
        read_step(at, rings, samples, t, n, step, grad.state[n]);
        if (in_two) vjp<Part::known>(cells, at, samples, t, n, step, grad.state[n], grad.param);
        exchange.wait(k, n);
        product(exchange.heard(k, n), at, n, step.sums);
        drop_unheard(samples, n, step.sums);
        vjp<in_two ? Part::sums : Part::both>(cells, at, samples, t, n, step, grad.state[n], grad.param);
        cut(at, samples, t, n, grad);
        tell_and_store(grad_x, at, samples, t, n, step, [&](int g, const Values& current) {
          if (alone || t >= delay) exchange.put(at, k, n, g, current);
        });
      }
      rings.load_x(at, t - (C - 1) - ahead, rows);
      rings.load_grads(at, t - ahead, rows);
      if (t % C == 0) rings.load_checkpoint(a, at, t / C - 2);
#pragma unroll
      for (int i = 0; i < I; ++i) grad_x[i].next();
      end_of_copies();
      exchange.end_of_step();
    }
    store_gradients(a, cells, at, grad);
#pragma unroll
    for (int i = 0; i < I; ++i)
      if (Spec::wants_grad_x(i)) Base::template clear_behind<T>(a, at, samples, a.grad_x[i]);
    exchange.close();
  }

  // Of the states after the last step.
  static __device__ __forceinline__ void add_last_grad_states(const RecurrentBackwardArgs<Cell>& a, const Lane& at,
                                                              int n, States& grad) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (!Spec::has_grad_state(s)) continue;
      const F* const row = static_cast<const F*>(a.grad_states[s].data);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        StateNumbers numbers;
        if (Spec::one_grad_state(s))
          numbers.fill(*row);
        else
          numbers = at.load(row, n, g);
#pragma unroll
        for (int j = 0; j < W; ++j) grad[g][j][s] += numbers.lane[j];
      }
    }
  }

  // What a step back reads, and the gradients of its inputs.
  struct Step {
    F x[I][G][W], state[room(S)][G][W], grad_y[O][G][W], grad_x[I][G][W];
    Values sums;
  };

  static __device__ __forceinline__ void read_step(const Lane& at, const BackwardRings& rings, const Samples& samples,
                                                   int t, int n, Step& step, States& grad_state) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int i = 0; i < I; ++i) rings.x[i].slot(t, n, g).unpack(step.x[i][g]);
#pragma unroll
      for (int s = 0; s < S; ++s) rings.states[s].slot(t, n, g).unpack(step.state[s][g]);
#pragma unroll
      for (int o = 0; o < O; ++o) {
        if (Spec::has_grad_y(o))
          rings.grad_y[o].slot(t, n, g).unpack(step.grad_y[o][g]);
        else
#pragma unroll
          for (int j = 0; j < W; ++j) step.grad_y[o][g][j] = F(0);
      }
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (Spec::store_states && Spec::has_grad_state(s) && samples.has(t, n, g))
#pragma unroll
          for (int j = 0; j < W; ++j) grad_state[g][j][s] += rings.grad_states[s].slot(t, n, g).lane[j];
    }
  }

  // A vjp is linear in what comes in. In a cluster its part that does not come through the matrix is computed while the
  // other part is on its way, and so is what both of them share.
  static constexpr bool in_two = blocks > 1;
  enum class Part { known, sums, both };

  template <Part part>
  static __device__ __forceinline__ void vjp(const Cells& cells, const Lane& at, const Samples& samples, int t, int n,
                                             Step& step, States& grad_state, F (&grad_param)[W][room(P)]) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const bool there = samples.has(t, n, g);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        F x[I], state[room(S)], grad_out[O], grad[room(S)], grad_x[I], sum[room(P)];
#pragma unroll
        for (int i = 0; i < I; ++i) x[i] = step.x[i][g][j];
#pragma unroll
        for (int s = 0; s < S; ++s) {
          state[s] = step.state[s][g][j];
          grad[s] = part == Part::sums ? F(0) : grad_state[g][j][s];
        }
#pragma unroll
        for (int o = 0; o < O; ++o) grad_out[o] = part == Part::sums ? F(0) : step.grad_y[o][g][j];
        if (part != Part::known) grad_out[0] += step.sums[g][j];
#pragma unroll
        for (int p = 0; p < P; ++p) sum[p] = grad_param[j][p];
        cells[j].vjp(x, state, grad_out, grad, grad_x, sum);
#pragma unroll
        for (int i = 0; i < I; ++i)
          step.grad_x[i][g][j] = part == Part::sums ? step.grad_x[i][g][j] + grad_x[i] : grad_x[i];
#pragma unroll
        for (int s = 0; s < S; ++s) {
          const F before = part == Part::sums ? grad_state[g][j][s] + grad[s] : grad[s];
          grad_state[g][j][s] = select(there, before, grad_state[g][j][s]);
        }
#pragma unroll
        for (int p = 0; p < P; ++p) grad_param[j][p] = select(there && at.has_sample(n, g), sum[p], grad_param[j][p]);
      }
    }
  }

  // States at which a sample starts anew are the cell's own, and none come before them.
  static __device__ __forceinline__ void cut(const Lane& at, Samples& samples, int t, int n, Gradients& grad) {
    if constexpr (Samples::has_start)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const bool is_cut = samples.starts_before(t, n, g);
        samples.close_ears(n, g, is_cut);
#pragma unroll
        for (int j = 0; j < W; ++j)
#pragma unroll
          for (int s = 0; s < S; ++s) {
            F& of_state = grad.state[n][g][j][s];
            grad.at_starts[j][s] += select(is_cut && at.has_sample(n, g), of_state, F(0));
            of_state = select(is_cut, F(0), of_state);
          }
      }
  }

  // What goes to others is rounded as what is stored. Behind the end of a sample that is zeros.
  template <class Tell>
  static __device__ __forceinline__ void tell_and_store(const WalkedRows<T> (&rows)[I], const Lane& at,
                                                        const Samples& samples, int t, int n, Step& step,
                                                        const Tell& tell) {
    Numbers grad_x[I][G];
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < W; ++j) step.grad_x[i][g][j] = select(samples.has(t, n, g), step.grad_x[i][g][j], F(0));
        grad_x[i][g].pack(step.grad_x[i][g]);
      }
      tell(g, step.grad_x[Spec::into]);
    }
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int i = 0; i < I; ++i)
        if (Spec::wants_grad_x(i)) at.store(rows[i].row, n, g, grad_x[i][g]);
  }

  // use(n, g) for each sample that is the lane's.
  template <class Use>
  static __device__ __forceinline__ void for_each_sample(const Lane& at, const Use& use) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int g = 0; g < G; ++g)
        if (n < at.count && at.has_sample(n, g)) use(n, g);
  }

  // A parameter's gradient stands at the lane's first sample; at its others there are zeros.
  static __device__ __forceinline__ void store_gradients(const RecurrentBackwardArgs<Cell>& a, const Cells& cells,
                                                         const Lane& at, Gradients& grad) {
    F own_initial[W][room(S)] = {};
    if constexpr (Samples::has_start)
#pragma unroll
      for (int j = 0; j < W; ++j)
#pragma unroll
        for (int s = 0; s < S; ++s) own_initial[j][s] = grad.at_starts[j][s];
    for_each_sample(at, [&](int n, int g) {
#pragma unroll
      for (int j = 0; j < W; ++j)
#pragma unroll
        for (int s = 0; s < S; ++s) {
          const F value = grad.state[n][g][j][s];
          const bool given = Spec::initial(s) != Source::absent;
          if (!given) own_initial[j][s] += value;
          if (given && Spec::wants_grad_initial(s) && at.has_neuron(j))
            store_as<F>(Spec::initial(s), a.grad_initial[s], at.index(n, g, j), value);
        }
    });
#pragma unroll
    for (int j = 0; j < W; ++j) cells[j].finish(own_initial[j], grad.param[j]);
    for_each_sample(at, [&](int n, int g) {
#pragma unroll
      for (int j = 0; j < W; ++j)
#pragma unroll
        for (int p = 0; p < P; ++p)
          if (Spec::wants_grad_param(p) && at.has_neuron(j))
            static_cast<F*>(a.grad_params[p])[at.index(n, g, j)] = n == 0 && g == 0 ? grad.param[j][p] : F(0);
    });
  }
};

}  // namespace spikeforge
