// The backward pass of a recurrent layer on the GPU (recurrent.cuh), from the last step to the first. The states before
// each step are recomputed from the checkpoint at or before them, `history` steps at once. The same warps recompute
// them while the sums of the previous step are in flight, or, with `apart`, an equal number of other warps does. Those
// also compute the part of a derivative that does not depend on gradients, and pass its coefficients to the warps that
// process the steps.
//
// Short names in addition to those of recurrent.cuh: L steps that are recomputed at once; K coefficients of a
// derivative.
#pragma once

#include "cuda/recurrent/recurrent.cuh"

namespace spikeforge {

template <class Cell> struct RecurrentBackwardArgs {
  long long steps, neurons;
  long long batch, width;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];  // the input `into` is the current
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  const void* weights;
  void* messages;  // Exchange
  Rows grad_y[Cell::n_outputs];
  Rows grad_states[room(Cell::n_states)];
  const void* checkpoints;
  void* grad_x[Cell::n_inputs];
  void* grad_initial[room(Cell::n_states)];
  void* grad_params[room(Cell::n_params)];  // [N]: of neurons, at their samples or at one of several
};

template <class Spec> struct RecurrentBackward : Recurrent<Spec> {
  using Base = Recurrent<Spec>;
  using typename Base::Cell, typename Base::Cells, typename Base::Exchange, typename Base::F, typename Base::Lane,
      typename Base::Numbers, typename Base::Product, typename Base::Samples, typename Base::StateNumbers,
      typename Base::States, typename Base::T, typename Base::Values;
  template <class E, int depth> using Ring = typename Base::template Ring<E, depth>;
  using Base::ahead, Base::block, Base::C, Base::delay, Base::G, Base::I, Base::O, Base::P, Base::S, Base::shape,
      Base::threads, Base::tiles, Base::W;
  using Base::drop_after_restart, Base::load_initial, Base::pack_state, Base::restart;

  static constexpr int L = shape.history, input_rows = shape.input_rows, K = Cell::n_coefficients;
  // True if an equal number of other warps recomputes a segment of L steps while these warps process the one after it.
  static constexpr bool apart = shape.apart;
  static_assert(K == shape.coefficients, "");
  // Steps of a segment that such warps compute side by side. In a single block the other warps wait for them, in a
  // cluster the warps wait for each other. Microseconds per step, LIF, float16, on an H200, with 2, 4 and 8: H = 128
  // 0.41, 0.39, 0.38; H = 256, B = 64, 0.379, 0.385, 0.391.
  static constexpr int most_together = Base::deferred ? 8 : 2;
  static constexpr int steps_together = L < most_together ? L : most_together;
  static_assert(!apart || L % steps_together == 0, "");

  // True if the tensor cores add sums to the gradient of the output, so that no addition follows. Their rounding
  // differs from float32 additions by less than the rounding of the result to 16 bits.
  static constexpr bool within = shape.split == 1 && !Base::in_pieces && !Samples::has_start;

  // The next rows to load into the rings.
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
    Ring<F, L> states[room(S)];            // before each step; if `apart`:
    Ring<F, 2 * L> coefficients[room(K)];  // of each step
    Ring<F, 2> checkpoints[room(S)];
    Ring<F, ahead> grad_states[room(S)];

    __device__ __forceinline__ explicit BackwardRings(unsigned char* memory) {
#pragma unroll
      for (int i = 0; i < I; ++i) x[i] = Ring<T, input_rows>(memory);
#pragma unroll
      for (int o = 0; o < O; ++o) grad_y[o] = Ring<T, ahead>(memory);
#pragma unroll
      for (int s = 0; s < S; ++s) {
        if (!apart) states[s] = Ring<F, L>(memory);
        checkpoints[s] = Ring<F, 2>(memory);
      }
      if (apart)
#pragma unroll
        for (int i = 0; i < K; ++i) coefficients[i] = Ring<F, 2 * L>(memory);
      if (Spec::store_states)
#pragma unroll
        for (int s = 0; s < S; ++s) grad_states[s] = Ring<F, ahead>(memory);
    }

    // Loads the rows of step t, and advances `rows`.
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

    // Loads the states before step C * which.
    __device__ __forceinline__ void load_checkpoint(const RecurrentBackwardArgs<Cell>& a, const Lane& at,
                                                    int which) const {
      if (which < 1) return;
#pragma unroll
      for (int s = 0; s < S; ++s)
        checkpoints[s].load(which, static_cast<const F*>(a.checkpoints) + times((which - 1) * S + s, a.neurons), at);
    }
  };

  // ---- recomputed states ----

  // Loads the states of a tile at the checkpoint at or before step t.
  static __device__ __forceinline__ void load_states(const RecurrentBackwardArgs<Cell>& a, const Cells& cells,
                                                     const Lane& at, const BackwardRings& rings, int t, int n,
                                                     States& state) {
    if (t < C) return load_initial(a, cells, at, n, state);
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const StateNumbers numbers = rings.checkpoints[s].slot(t / C, n, g);
#pragma unroll
        for (int j = 0; j < W; ++j) state[g][j][s] = numbers.lane[j];
      }
  }

  using Inputs = Numbers[I][G];
  static __device__ __forceinline__ void read_inputs(const BackwardRings& rings, int t, int n, Inputs& in) {
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
      for (int g = 0; g < G; ++g) in[i][g] = rings.x[i].slot(t, n, g);
  }

  static __device__ __forceinline__ void step(const Cells& cells, const F (&in)[I][G][W], States& state) {
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

  // Recomputes the states before steps t - t % L to t. Apart, whole segments: after the last step they are computed
  // from arbitrary values and not used, as are the tiles that the cluster lacks. All tiles at once: a step of one tile
  // is a chain of dependent instructions.
  static __device__ __forceinline__ void recompute(const RecurrentBackwardArgs<Cell>& a, const Cells& cells,
                                                   const Lane& at, const BackwardRings& rings, const Samples& samples,
                                                   int t) {
    States state[tiles];
#pragma unroll
    for (int n = 0; n < tiles; ++n) load_states(a, cells, at, rings, t, n, state[n]);
    const int kept_from = t / L * L;
    run<false>(cells, rings, samples, t / C * C, kept_from, state);
    run<true>(cells, rings, samples, kept_from, apart ? kept_from + L : t + 1, state);
  }

  template <bool keeps>
  static __device__ __forceinline__ void run(const Cells& cells, const BackwardRings& rings, const Samples& samples,
                                             int from, int to, States (&state)[tiles]) {
    constexpr int together = apart ? steps_together : 1;
    Inputs next[together][tiles];
    const auto read = [&](int t) {
#pragma unroll
      for (int i = 0; i < together * tiles; ++i)
        read_inputs(rings, t + i / tiles, i % tiles, next[i / tiles][i % tiles]);
    };
    if (from < to) read(from);
#pragma unroll 1
    for (int t = from; t < to; t += together) {
      F in[together][tiles][I][G][W];
#pragma unroll
      for (int i = 0; i < together * tiles; ++i) unpack(next[i / tiles][i % tiles], in[i / tiles][i % tiles]);
      if (t + together < to) read(t + together);  // before the stores: the compiler does not move loads across them
#pragma unroll
      for (int i = 0; i < together; ++i)
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
          restart(cells, samples, t + i, n, state[n]);
          if (keeps) keep(cells, rings, t + i, n, in[i][n], state[n]);
          step(cells, in[i][n], state[n]);
        }
    }
  }

  static __device__ __forceinline__ void unpack(const Inputs& packed, F (&in)[I][G][W]) {
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
      for (int g = 0; g < G; ++g) packed[i][g].unpack(in[i][g]);
  }

  // Stores the state before step t, or the coefficients of its derivative, for the warps that process the steps.
  static __device__ __forceinline__ void keep(const Cells& cells, const BackwardRings& rings, int t, int n,
                                              const F (&in)[I][G][W], const States& state) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if constexpr (apart) {
        F coefficients[room(K)][W];
        compute_coefficients(
            cells, [&](int i, int j) { return in[i][g][j]; }, [&](int s, int j) { return state[g][j][s]; },
            coefficients);
#pragma unroll
        for (int i = 0; i < K; ++i) rings.coefficients[i].slot(t, n, g).pack(coefficients[i]);
      } else {
#pragma unroll
        for (int s = 0; s < S; ++s) rings.states[s].slot(t, n, g) = pack_state(state, g, s);
      }
    }
  }

  // Keeps the values of the lane's neurons j, input(i, j) and state(s, j).
  template <class Input, class State>
  static __device__ __forceinline__ void compute_coefficients(const Cells& cells, const Input& input,
                                                              const State& state_of, F (&coefficients)[room(K)][W]) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      F x[I], state[room(S)], c[room(K)];
#pragma unroll
      for (int i = 0; i < I; ++i) x[i] = input(i, j);
#pragma unroll
      for (int s = 0; s < S; ++s) state[s] = state_of(s, j);
      cells[j].coefficients(x, state, c);
#pragma unroll
      for (int i = 0; i < K; ++i) coefficients[i][j] = c[i];
    }
  }

  // ---- warps that recompute ----

  // Both kinds of warps meet here once per segment: one has been recomputed, and the previous one has been processed.
  static __device__ __forceinline__ void meet_other_warps() { Base::meet(block); }

  static __device__ __forceinline__ void recompute_all(const RecurrentBackwardArgs<Cell>& a, const Cells& cells,
                                                       const Lane& at, const BackwardRings& rings, Samples& samples) {
    const int last = samples.steps - 1;
    load_chunk(a, at, rings, last / C, last);
#pragma unroll 1
    for (int t = last; t >= 0; t = t / L * L - 1) {
      if (t == last || t % C == C - 1) {
        load_chunk(a, at, rings, t / C - 1, last);
        wait_for_copies<1>();
      }
      if (t == last || t % Samples::word == Samples::word - 1) samples.read_starts(a, at, t);
      recompute(a, cells, at, rings, samples, t);
      meet_other_warps();
    }
  }

  // Loads the inputs of the steps from one checkpoint to the next, and the states of the checkpoint.
  static __device__ __forceinline__ void load_chunk(const RecurrentBackwardArgs<Cell>& a, const Lane& at,
                                                    const BackwardRings& rings, int which, int last) {
    if (which >= 0)
#pragma unroll 1
      for (int t = which * C; t < which * C + C && t <= last; ++t)
#pragma unroll
        for (int i = 0; i < I; ++i) rings.x[i].load(t, row_of<T>(a.x[i], t), at);
    rings.load_checkpoint(a, at, which);
    end_of_copies();
  }

  struct Gradients {
    F state[tiles][G][W][room(S)];
    F param[W][room(P)];                               // summed over the lane's samples
    F at_starts[Samples::has_start ? W : 1][room(S)];  // of initial states at restarts, summed over the lane's samples
  };

  static __device__ __forceinline__ void backward(const RecurrentBackwardArgs<Cell>& a) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* rest = Base::kept(memory);
    const Lane at(a);
    const Exchange exchange(rest, a.messages, at);
    unsigned char* const of_product = rest;
    rest += Base::partial_bytes;
    const BackwardRings rings(rest);
    const Cells cells(a, at);
    Samples samples(a, at);
    if (apart && static_cast<int>(threadIdx.x) >= threads) {
      exchange.meet();  // the exchange is open
      return recompute_all(a, cells, at, rings, samples);
    }
    walk(a, cells, at, exchange, of_product, rings, samples);
  }

  // ---- warps that process the steps, from the last to the first ----

  static __device__ __forceinline__ void walk(const RecurrentBackwardArgs<Cell>& a, const Cells& cells, const Lane& at,
                                              const Exchange& exchange, unsigned char* of_product,
                                              const BackwardRings& rings, Samples& samples) {
    Product product;
    product.template load<true>(a.weights, at, of_product);
    Gradients grad = {};
    if (!Spec::store_states)
#pragma unroll
      for (int n = 0; n < tiles; ++n) add_last_grad_states(a, at, n, grad.state[n]);

    const int last = samples.steps - 1;
    // Rows are loaded in the order of their use: at step t those of step t - ahead; inputs are loaded earlier by the
    // number of steps that a recomputation may need.
    RowsBack rows(a, last);
    if (!apart)
#pragma unroll 1
      for (int t = last; t > last - (C - 1) - ahead; --t) rings.load_x(at, t, rows);
#pragma unroll 1
    for (int t = last; t > last - ahead; --t) rings.load_grads(at, t, rows);
    if (!apart) {
      rings.load_checkpoint(a, at, last / C);
      rings.load_checkpoint(a, at, last / C - 1);
    }
    end_of_copies();
    wait_for_copies<0>();
    exchange.open([](int, int, int) { return F(0); });

    constexpr int on_their_way = ahead < C || apart ? ahead - 1 : C - 1;
    Stored stored(a, last);
    const auto load = [&](int t) {
      if (!apart) rings.load_x(at, t - (C - 1) - ahead, rows);
      rings.load_grads(at, t - ahead, rows);
      if (!apart && t % C == 0) rings.load_checkpoint(a, at, t / C - 2);
      end_of_copies();
    };
#pragma unroll 1
    for (int t = last; t >= 0; --t) {
      const int k = last - t;
      wait_for_copies<on_their_way>();
      if (k == 0 || t % Samples::word == Samples::word - 1) samples.read_starts(a, at, t);
      if (k == 0 || t % L == L - 1) {
        if constexpr (apart) {
          meet_other_warps();
        } else {
          recompute(a, cells, at, rings, samples, t);
        }
      }
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        if (n > 0 && n >= at.count) break;
        Step step;
        read_step(cells, at, rings, samples, t, n, step, grad.state[n]);
        exchange.wait(k, n);
        if constexpr (within) begin_sums(step);
        product.template operator()<within>(exchange.memory, exchange.fed_back(k, n), at, n, step.sums, [&] {
          if (!Base::deferred) return;
          stored.store(at, n);  // of step t + 1; at the last step, arbitrary values, overwritten later
          load(t);
        });
        drop_after_restart(samples, n, step.sums);
        vjp(cells, at, samples, t, n, step, grad.state[n], grad.param);
        cut(at, samples, t, n, grad);
        send_gradient(at, samples, t, n, step, stored,
                      [&](int g, const Values& current) { exchange.put(at, k, n, g, current); });
        exchange.end_of_tile(at, k, n);
        exchange.expect(k, n);
        if (!Base::deferred) stored.store(at, n);
      }
      if (!Base::deferred) load(t);
      if (!Base::deferred || k > 0) stored.next();
      exchange.end_of_step();
    }
    if (Base::deferred && last >= 0) stored.store(at, 0);
    store_gradients(a, cells, at, grad);
#pragma unroll
    for (int i = 0; i < I; ++i)
      if (Spec::wants_grad_x(i)) Base::template clear_behind<T>(a, at, samples, a.grad_x[i]);
    exchange.close(at, samples.steps);
  }

  // The values that are stored in memory, and their row.
  struct Stored {
    WalkedRows<T> rows[I];
    Numbers grad_x[I][G];

    __device__ __forceinline__ Stored(const RecurrentBackwardArgs<Cell>& a, int last) {
#pragma unroll
      for (int i = 0; i < I; ++i) {
        rows[i] = {a.grad_x[i], a.neurons, last, -1};
#pragma unroll
        for (int g = 0; g < G; ++g) grad_x[i][g] = {};
      }
    }
    __device__ __forceinline__ void store(const Lane& at, int n) const {
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int i = 0; i < I; ++i)
          if (Spec::wants_grad_x(i)) at.store(rows[i].row, n, g, grad_x[i][g]);
    }
    __device__ __forceinline__ void next() {
#pragma unroll
      for (int i = 0; i < I; ++i) rows[i].next();
    }
  };

  // Adds the gradients of the states after the last step.
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

  // The values that a backward step reads, and the gradients of its inputs.
  struct Step {
    F coefficients[G][room(K)][W], grad_y[O][G][W], grad_x[I][G][W];
    Values sums;
  };

  static __device__ __forceinline__ void read_step(const Cells& cells, const Lane& at, const BackwardRings& rings,
                                                   const Samples& samples, int t, int n, Step& step,
                                                   States& grad_state) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if constexpr (apart) {
#pragma unroll
        for (int i = 0; i < K; ++i) rings.coefficients[i].slot(t, n, g).unpack(step.coefficients[g][i]);
      } else {
        F in[I][W], states[room(S)][W];
#pragma unroll
        for (int i = 0; i < I; ++i) rings.x[i].slot(t, n, g).unpack(in[i]);
#pragma unroll
        for (int s = 0; s < S; ++s) rings.states[s].slot(t, n, g).unpack(states[s]);
        compute_coefficients(
            cells, [&](int i, int j) { return in[i][j]; }, [&](int s, int j) { return states[s][j]; },
            step.coefficients[g]);
      }
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

  static __device__ __forceinline__ void begin_sums(Step& step) {
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int j = 0; j < W; ++j) step.sums[g][j] = step.grad_y[0][g][j];
  }

  // The part of the derivative that is independent of the sums was computed while they were in flight.
  static __device__ __forceinline__ void vjp(const Cells& cells, const Lane& at, const Samples& samples, int t, int n,
                                             Step& step, States& grad_state, F (&grad_param)[W][room(P)]) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const bool there = samples.has(t, n, g);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        F c[room(K)], grad_out[O], grad[room(S)], grad_x[I], sum[room(P)];
#pragma unroll
        for (int i = 0; i < K; ++i) c[i] = step.coefficients[g][i][j];
#pragma unroll
        for (int s = 0; s < S; ++s) grad[s] = grad_state[g][j][s];
#pragma unroll
        for (int o = 0; o < O; ++o) grad_out[o] = step.grad_y[o][g][j];
        grad_out[0] = within ? step.sums[g][j] : grad_out[0] + step.sums[g][j];
#pragma unroll
        for (int p = 0; p < P; ++p) sum[p] = grad_param[j][p];
        cells[j].vjp(c, grad_out, grad, grad_x, sum);
#pragma unroll
        for (int i = 0; i < I; ++i) step.grad_x[i][g][j] = grad_x[i];
#pragma unroll
        for (int s = 0; s < S; ++s) grad_state[g][j][s] = select(there, grad[s], grad_state[g][j][s]);
#pragma unroll
        for (int p = 0; p < P; ++p) grad_param[j][p] = select(there && at.has_sample(n, g), sum[p], grad_param[j][p]);
      }
    }
  }

  // Moves the gradient of the states at which a sample restarts to the cell's initial states; earlier states receive
  // none.
  static __device__ __forceinline__ void cut(const Lane& at, Samples& samples, int t, int n, Gradients& grad) {
    if constexpr (Samples::has_start)
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const bool is_cut = samples.starts_before(t, n, g);
        samples.block_across_restart(n, g, is_cut);
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

  // Values for other blocks are rounded like the stored ones. After the end of a sample they are zeros.
  template <class Send>
  static __device__ __forceinline__ void send_gradient(const Lane& at, const Samples& samples, int t, int n, Step& step,
                                                       Stored& stored, const Send& send) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < W; ++j) step.grad_x[i][g][j] = select(samples.has(t, n, g), step.grad_x[i][g][j], F(0));
        stored.grad_x[i][g].pack(step.grad_x[i][g]);
      }
      send(g, step.grad_x[Spec::into]);
    }
  }

  // Calls use(n, g) for each of the lane's samples.
  template <class Use> static __device__ __forceinline__ void for_each_sample(const Lane& at, const Use& use) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int g = 0; g < G; ++g)
        if (n < at.count && at.has_sample(n, g)) use(n, g);
  }

  // A parameter's gradient is stored at the lane's first sample; the lane's other samples get zeros.
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
