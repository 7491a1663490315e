// The backward pass of the multistep loop (multistep.cuh): segments from the last to the first, each recomputed from
// its checkpoint.
#pragma once

#include "cuda/multistep/neurons.cuh"

namespace spikeforge {

// Blocks per multiprocessor, for one_segment. The rows of two turns need many registers. With at most 128 registers per
// thread, the blocks of neurons_at_once fit: without the bound PLIF's backward pass used 168 on an H200, and took 1.63
// of the bytes' time rather than 1.26 (float16). From sm_100 on it uses 188, and with the bound would spill 460 bytes.
#if __CUDA_ARCH__ < 1000
__device__ constexpr int blocks_of_one_segment = 4;
#else
__device__ constexpr int blocks_of_one_segment = 1;
#endif

template <class Cell> struct BackwardArgs {
  long long steps, neurons, at_once;
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  Rows grad_y[Cell::n_outputs];
  Rows grad_states[room(Cell::n_states)];
  const void* checkpoints;
  void* grad_x[Cell::n_inputs];
  void* grad_initial[room(Cell::n_states)];
  // One value for each neuron of `at_once`, or for each warp of them that shares the parameter; summed afterwards.
  void* grad_params[room(Cell::n_params)];
};

template <class Spec> struct MultistepBackward : MultistepNeurons<Spec> {
  using Base = MultistepNeurons<Spec>;
  using Base::C, Base::I, Base::O, Base::P, Base::S, Base::W;
  using Base::cut, Base::has_start, Base::is_behind, Base::load, Base::load_initial, Base::never, Base::restart,
      Base::shared, Base::steps_of, Base::turns;
  using typename Base::Cell, typename Base::Cells, typename Base::F, typename Base::Input, typename Base::InputPack,
      typename Base::Neurons, typename Base::OfStarts, typename Base::StatePack, typename Base::Turns;

  // Steps after the end of the sequence: none exist; they are skipped; or they are computed on zeros and their results
  // are dropped, because branches would split the code that the passes over a segment share.
  enum class Behind { none, skipped, dropped };

  // The steps of a segment from t0 on, loaded from memory.
  struct SegmentRows {
    static constexpr bool is_shared = false;
    int t0, length;
    InputPack x[C][I], grad_y[C][O];
    typename Base::template Starts<C> starts;

    __device__ __forceinline__ const InputPack& input(int u, int c) const { return x[u][c]; }
    __device__ __forceinline__ const InputPack& upstream(int u, int c) const { return grad_y[u][c]; }
    // Stores the gradient of input c at `row`.
    __device__ __forceinline__ void store_grad_x(Input* row, int, int, const InputPack& values) const {
      Neurons::store(row, values);
    }
  };
  // A segment whose rows are provided by SegmentRows.
  template <class SegmentRows> struct SegmentOf : SegmentRows {
    F before[C][W][room(S)];  // before each step
  };
  using Segment = SegmentOf<SegmentRows>;

  template <Behind behind>
  static __device__ __forceinline__ void load_rows(const BackwardArgs<Cell>& a, Neurons n, int t0, SegmentRows& to) {
    to.t0 = t0;
    to.length = steps_of(a, n) - t0;
#pragma unroll
    for (int u = 0; u < C; ++u) to.starts.load(n, u, t0 + u, behind == Behind::none || u < to.length);
#pragma unroll
    for (int c = 0; c < I; ++c) {
      Cursor<const Input> rows = Base::template rows_of<Input>(a.x[c], t0, n);
#pragma unroll
      for (int u = 0; u < C; ++u) {
        if (behind != Behind::none) to.x[u][c] = InputPack{};
        const Input* row = rows.next();
        if (behind == Behind::none || u < to.length) to.x[u][c] = Neurons::load(row);
      }
    }
#pragma unroll
    for (int c = 0; c < O; ++c) {
      Cursor<const Input> rows = Base::template rows_of<Input>(a.grad_y[c], t0, n, Spec::one_grad_y(c));
#pragma unroll
      for (int u = 0; u < C; ++u) {
        if (behind != Behind::none || !Spec::has_grad_y(c)) to.grad_y[u][c] = InputPack{};
        const Input* row = rows.next();
        if (Spec::has_grad_y(c) && (behind == Behind::none || u < to.length))
          to.grad_y[u][c] = load(row, Spec::one_grad_y(c));
        if (Spec::ones_grad_y(c)) to.grad_y[u][c].fill(convert<Input>(F(1)));
      }
    }
  }

  static __device__ __forceinline__ void load_state(const BackwardArgs<Cell>& a, const Cells& cells, int t0, Neurons n,
                                                    F (&state)[W][room(S)]) {
    if (t0 == 0 || t0 >= a.steps || is_behind(n, t0)) {
      load_initial(a, cells, n, state);
      return;
    }
    Cursor<const F> rows = Base::template rows_of<const F>(const_cast<void*>(a.checkpoints),
                                                           static_cast<long long>(t0 / C - 1) * S, a.neurons, n);
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const StatePack pack = Neurons::load(rows.next());
#pragma unroll
      for (int k = 0; k < W; ++k) state[k][s] = pack.lane[k];
    }
  }

  template <Behind behind, class Segment>
  static __device__ __forceinline__ void recompute(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                   Segment& segment) {
    load_state(a, cells, segment.t0, n, segment.before[0]);
    restart(cells, segment.starts, 0, segment.before[0]);
#pragma unroll
    for (int u = 0; u + 1 < C; ++u) {
      if (behind == Behind::skipped && u + 1 >= segment.length) break;
      F in[I][W];
#pragma unroll
      for (int c = 0; c < I; ++c) segment.input(u, c).unpack(in[c]);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        F x[I], y[O];
#pragma unroll
        for (int c = 0; c < I; ++c) x[c] = in[c][k];
#pragma unroll
        for (int s = 0; s < S; ++s) segment.before[u + 1][k][s] = segment.before[u][k][s];
        cells.step(k, segment.t0 + u, x, segment.before[u + 1][k], y);
      }
      restart(cells, segment.starts, u + 1, segment.before[u + 1]);
    }
  }

  // Adds the upstream gradients of the states after step t, if there are any.
  static __device__ __forceinline__ void add_grad_states(const BackwardArgs<Cell>& a, int t, Neurons n,
                                                         F (&grad_state)[W][room(S)]) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (!Spec::has_grad_state(s)) continue;
      const StatePack pack =
          load(Base::template rows_of<F>(a.grad_states[s], t, n, Spec::one_grad_state(s)).at, Spec::one_grad_state(s));
#pragma unroll
      for (int k = 0; k < W; ++k) grad_state[k][s] += pack.lane[k];
    }
  }

  // Replaces grad_state after step u of the segment by grad_state before it.
  template <Behind behind, class Segment>
  static __device__ __forceinline__ void vjp(const Cells& cells, const Segment& segment, int u, bool with_grad_y,
                                             F (&grad_state)[W][room(S)], F (&grad_x)[I][W],
                                             F (&grad_param)[W][room(P)]) {
    F in[I][W], grad_y[O][W];
#pragma unroll
    for (int c = 0; c < I; ++c) segment.input(u, c).unpack(in[c]);
#pragma unroll
    for (int c = 0; c < O; ++c) segment.upstream(u, c).unpack(grad_y[c]);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      F x[I], grad_in[I], grad_out[O];
#pragma unroll
      for (int c = 0; c < I; ++c) x[c] = in[c][k];
#pragma unroll
      for (int c = 0; c < O; ++c) grad_out[c] = !with_grad_y ? F(0) : Spec::ones_grad_y(c) ? F(1) : grad_y[c][k];
      if constexpr (behind != Behind::dropped) {
        cells.vjp(k, segment.t0 + u, x, segment.before[u][k], grad_out, grad_state[k], grad_in, grad_param[k]);
      } else {
        const bool there = u < segment.length;
        F grad_before[room(S)], grad_sum[room(P)];
#pragma unroll
        for (int s = 0; s < S; ++s) grad_before[s] = grad_state[k][s];
#pragma unroll
        for (int j = 0; j < P; ++j) grad_sum[j] = grad_param[k][j];
        cells.vjp(k, segment.t0 + u, x, segment.before[u][k], grad_out, grad_before, grad_in, grad_sum);
#pragma unroll
        for (int s = 0; s < S; ++s) grad_state[k][s] = select(there, grad_before[s], grad_state[k][s]);
#pragma unroll
        for (int j = 0; j < P; ++j) grad_param[k][j] = select(there, grad_sum[j], grad_param[k][j]);
      }
#pragma unroll
      for (int c = 0; c < I; ++c) grad_x[c][k] = grad_in[c];
    }
  }

  template <Behind behind, class Segment>
  static __device__ __forceinline__ void walk_back(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                   const Segment& segment, F (&grad_state)[W][room(S)],
                                                   F (&grad_param)[W][room(P)], OfStarts& of_starts) {
    Cursor<Input> rows[I];
#pragma unroll
    for (int c = 0; c < I; ++c)
      rows[c] = Base::template rows_of<Input>(a.grad_x[c], segment.t0 + C - 1, a.neurons, n, -1);
#pragma unroll
    for (int u = C - 1; u >= 0; --u) {
      const bool there = behind == Behind::none || u < segment.length;
      F grad_x[I][W];
      if (behind != Behind::skipped || there) {
        if (Spec::store_states && there) add_grad_states(a, segment.t0 + u, n, grad_state);
        vjp<behind>(cells, segment, u, true, grad_state, grad_x, grad_param);
        cut(segment.starts, u, grad_state, of_starts);
      }
#pragma unroll
      for (int c = 0; c < I; ++c) {
        InputPack values;
        values.pack(grad_x[c]);
        Input* row = rows[c].next();
        if (Spec::wants_grad_x(c) && there) segment.store_grad_x(row, u, c, values);
      }
    }
  }

  struct Gradients {
    F state[W][room(S)];
    F param[W][room(P)];
    OfStarts of_starts;

    __device__ __forceinline__ Gradients() {
      clear_states();
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int j = 0; j < P; ++j) param[k][j] = F(0);
    }

    __device__ __forceinline__ void clear_states() {
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) state[k][s] = F(0);
    }
  };

  // Stores the gradient of the states before the first step. The gradient of initial values that the cell computes is
  // added to `own`.
  static __device__ __forceinline__ void store_grad_initial(const BackwardArgs<Cell>& a, Neurons n,
                                                            const Gradients& grad, F (&own)[W][room(S)]) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const bool given = Spec::initial(s) != Source::absent;
        if (!given) own[k][s] += grad.state[k][s];
        if (given && Spec::wants_grad_initial(s))
          store_as<F>(Spec::initial(s), a.grad_initial[s], n.neuron(k), grad.state[k][s]);
      }
    }
  }

  static __device__ __forceinline__ void finish_grad_params(const Cells& cells, F (&own)[W][room(S)], Gradients& grad) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if constexpr (has_start)
        for (int s = 0; s < S; ++s) own[k][s] += grad.of_starts.state[k][s];
      cells.finish(k, own[k], grad.param[k]);
    }
  }

  static __device__ __forceinline__ void store_grad_params(const BackwardArgs<Cell>& a, Neurons n,
                                                           const Gradients& grad) {
#pragma unroll
    for (int k = 0; k < W; ++k)
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (Spec::wants_grad_param(j) && !shared(j)) static_cast<F*>(a.grad_params[j])[n.neuron(k)] = grad.param[k][j];
#pragma unroll
    for (int j = 0; j < P; ++j)
      if (Spec::wants_grad_param(j) && shared(j)) store_sum_of_warp(static_cast<F*>(a.grad_params[j]), n, grad, j);
  }

  static __device__ __forceinline__ void store_sum_of_warp(F* sums, Neurons n, const Gradients& grad, int j) {
    F sum = F(0);
#pragma unroll
    for (int k = 0; k < W; ++k) sum += select(n.own(k), grad.param[k][j], F(0));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) sums[n.start / (32 * W)] = sum;
  }

  template <Behind behind>
  static __device__ __forceinline__ void backward_segment(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                          int t0, Gradients& grad) {
    Segment segment;
    load_rows<behind>(a, n, t0, segment);
    if (never(a)) return;
    recompute<behind>(a, cells, n, segment);
    walk_back<behind>(a, cells, n, segment, grad.state, grad.param, grad.of_starts);
  }

  // Processes the whole sequence of a thread's neurons.
  static __device__ __forceinline__ void walk_sequence(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                       Gradients& grad) {
    const int steps = steps_of(a, n);
    if (!Spec::store_states) add_grad_states(a, 0, n, grad.state);
    clear_grad_x(a, n);
    int t0 = (steps - 1) & ~(C - 1);
    if (Spec::ragged && t0 + C > steps && t0 >= 0) {
      backward_segment<Behind::skipped>(a, cells, n, t0, grad);
      t0 -= C;
    }
    for (; t0 >= 0; t0 -= C) backward_segment<Behind::none>(a, cells, n, t0, grad);
  }

  static __device__ __forceinline__ void clear_grad_x(const BackwardArgs<Cell>& a, Neurons n, int first = 0,
                                                      int apart = 1) {
#pragma unroll
    for (int c = 0; c < I; ++c)
      if (Spec::wants_grad_x(c)) Base::template clear_behind<Input>(a, a.grad_x[c], n, first, apart);
  }

  static __device__ __forceinline__ void backward(const BackwardArgs<Cell>& a) {
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long at_once = Spec::in_turns ? a.at_once : a.neurons;
    if (thread >= Neurons::threads(at_once)) return;
    const Turns all = turns(a, thread, at_once);
    backward(a, all, [&](const Gradients& grad) { store_grad_params(a, all.first, grad); });
  }

  // Calls `use` with the gradients of parameters, summed over the turns in registers.
  template <class Use>
  static __device__ __forceinline__ void backward(const BackwardArgs<Cell>& a, Turns turns, Use&& use) {
    if constexpr (Spec::one_segment)
      backward_one_segment(a, turns, use);
    else
      backward_segments(a, turns, use);
  }

  template <class Use>
  static __device__ __forceinline__ void backward_segments(const BackwardArgs<Cell>& a, Turns turns, Use&& use) {
    Neurons n = turns.first;
    const Cells cells(a, n);
    Gradients grad;
    F own[W][room(S)] = {};
    do {
      walk_sequence(a, cells, n, grad);
      store_grad_initial(a, n, grad, own);
      if (!Spec::in_turns) break;
      grad.clear_states();
      n = n.further(turns.apart);
    } while (turns.have(n));
    finish_grad_params(cells, own, grad);
    use(grad);
  }

  // The rows of the next turn are in flight while one is computed.
  template <class Use>
  static __device__ __forceinline__ void backward_one_segment(const BackwardArgs<Cell>& a, Turns turns, Use&& use) {
    constexpr Behind behind = Spec::ragged ? Behind::skipped : Behind::none;
    Neurons n = turns.first;
    SegmentRows next;
    load_rows<behind>(a, n, 0, next);
    const Cells cells(a, n);
    Gradients grad;
    F own[W][room(S)] = {};
    bool goes_on = true;
    while (goes_on) {
      Segment segment;
      static_cast<SegmentRows&>(segment) = next;
      const Neurons further = n.further(turns.apart);
      goes_on = turns.have(further);
      if (goes_on) load_rows<behind>(a, further, 0, next);
      if (never(a)) return;
      backward_rows(a, cells, n, segment, grad, own);
      n = further;
    }
    finish_grad_params(cells, own, grad);
    use(grad);
  }

  // Processes the sequence of a thread's neurons, which is one segment.
  template <class Segment>
  static __device__ __forceinline__ void backward_rows(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                       Segment& segment, Gradients& grad, F (&own)[W][room(S)]) {
    constexpr Behind behind = Spec::ragged ? Behind::skipped : Behind::none;
    grad.clear_states();
    if (!Spec::store_states) add_grad_states(a, 0, n, grad.state);
    recompute<behind>(a, cells, n, segment);
    if constexpr (Segment::is_shared) asm volatile("" ::: "memory");  // forces a reload, which saves registers
    walk_back<behind>(a, cells, n, segment, grad.state, grad.param, grad.of_starts);
    store_grad_initial(a, n, grad, own);
  }
};

}  // namespace spikeforge
