// The multistep loop on the GPU: the one loop over T that runs a cell, forward and backward. It knows loads, stores,
// widths, prefetch and checkpoints, and nothing of any neuron. A thread owns `Spec::width` neurons for the whole
// sequence, or backward, where neurons are few, for some of its segments.
//
// A Spec, printed by csrc/kernels/multistep/spec.cpp, decides at compile time:
//   Cell, Input (the type of x and y), Compute (of states and arithmetic)
//   width        neurons a thread
//   neighbours   whether they are neighbours, read in one access (rows.cuh: Lanes)
//   rows         forward: rows of x that are on their way at any time
//   staged       forward: whether they go through shared memory
//   checkpoint   steps between two saved states, and the length of the backward pass's segments
//   segments     backward: segments of the same neurons that a block computes side by side
//   ragged       backward: whether T is no multiple of what is computed at once
//   in_turns     whether a thread takes other neurons after its first, whose parameters are the same
//   one_segment  backward, in turns: whether the sequence is no longer than a segment
//   save, store_states, and for each parameter, state and gradient whether it is there and of what type
//   spread       for each parameter which neurons have the same
//   packed_bits  forward: of each number of the first output, which is written as bits too; 0: it is not
//   wide         whether neurons are too many to be counted in 32 bits, where a parameter's channels are
//   has_lengths, has_start   in kernels of samples alone: whether they differ in length, and whether they start anew.
//                A thread's neurons are then of one sample, and it takes no others; the arguments are WithSamples
// A cell that draws random numbers has `draws`, and the arguments are WithDraws; a thread takes no other neurons. The
// Spec has draws_in_order: whether neurons lie in memory as in the shape.
//
// Arguments are sequences of 8-byte words in the order of the structs below; the host writes them in that order, and
// zeros for the one element of an empty list.
#pragma once

#include <spikeforge/neuron/cell.h>
#include <spikeforge/neuron/options.h>
#include <spikeforge/neuron/surrogate.h>
#include <spikeforge/cuda/draws.cuh>
#include <spikeforge/cuda/packed_row.cuh>
#include <spikeforge/cuda/rows.cuh>
#include <spikeforge/cuda/samples.cuh>

namespace spikeforge {

// Blocks whose registers a multiprocessor has room for, where one_segment. Rows of two turns fill registers, of which
// there are enough for the blocks of neurons_at_once if a thread takes no more than 128: without the bound PLIF's
// backward pass took 168 on an H200, and 1.63 of the bytes' time rather than 1.26 (float16). From sm_100 on it takes
// 188, and with the bound would spill 460 bytes.
#if __CUDA_ARCH__ < 1000
__device__ constexpr int blocks_of_one_segment = 4;
#else
__device__ constexpr int blocks_of_one_segment = 1;
#endif

// Of an array: a cell may have no state or no parameter, an array has at least one element.
__device__ constexpr int room(int count) { return count > 0 ? count : 1; }

template <class Cell>
struct ForwardArgs {
  long long steps, neurons;
  long long at_once;  // neurons, where a thread's next ones lie so many behind; else all
  double constants[max_surrogate_args];
  Rows x[Cell::n_inputs];
  const void* initial[room(Cell::n_states)];
  ParamSource params[room(Cell::n_params)];
  void* y[Cell::n_outputs];
  void* states[room(Cell::n_states)];  // [N], or [T, N] where the sequences are stored
  void* checkpoints;                   // [(T - 1) / checkpoint, n_states, N]
  unsigned char* packed;               // y[0] as bits, [T, N * packed_bits / 8]
  unsigned char* packed_valid;         // becomes 0 where a number is none that there are bits for
};

template <class Cell>
struct BackwardArgs {
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
  // One value for each neuron of `at_once`, or a warp of them where it shares the parameter; summed afterwards.
  void* grad_params[room(Cell::n_params)];
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
  static constexpr bool has_lengths = SamplesOf<Spec>::has_lengths, has_start = SamplesOf<Spec>::has_start;
  static constexpr bool draws = DrawsOf<Cell>::any;
  template <bool of_samples, class AnyLanes>
  struct NeuronsOf {
    using type = AnyLanes;
  };
  template <class AnyLanes>
  struct NeuronsOf<true, AnyLanes> {
    using type = OfSample<AnyLanes>;
  };
  using Neurons = typename NeuronsOf<has_lengths || has_start, Lanes<W, Spec::neighbours>>::type;
  using InputPack = Pack<Input, W, Spec::neighbours>;
  using StatePack = Pack<F, W, Spec::neighbours>;

  // Whether the neurons of a warp have the same value of a parameter.
  static __device__ constexpr bool shared(int j) {
    return Spec::spread(j) == Spread::one || Spec::spread(j) == Spread::by_warp;
  }

  static __device__ constexpr bool checks_params() {
    for (int j = 0; j < P; ++j)
      if (Spec::legal(j) != Legal::unchecked) return true;
    return false;
  }

  // NaN, where there is one.
  static constexpr bool has_nan = F(.5) != F(0);
  static __device__ __forceinline__ F poison(int j) {
    if constexpr (has_nan)
      return F(0) / F(0);
    else
      return F(Spec::poison(j));
  }

  // Parameters that do not come from where the arguments say: none.
  struct NoneGiven {
    static __device__ constexpr bool has(int) { return false; }
    __device__ __forceinline__ F value(int, int) const { return F(0); }
  };

  // Of the thread's neurons. False: the value of a tensor is not legal.
  struct Params {
    F of[W][room(P)];
    bool legal[W];

    template <class Args, class Given = NoneGiven>
    __device__ __forceinline__ Params(const Args& a, Neurons n, const Given& given = {})
        : Params(a, n, given, typename IndicesBelow<P>::type{}) {}

   private:
    template <class Args, class Given, int... j>
    __device__ __forceinline__ Params(const Args& a, Neurons n, const Given& given, Indices<j...>) {
#pragma unroll
      for (int k = 0; k < W; ++k) legal[k] = true;
      ParamPlace place;  // of the first neuron; the neighbours are counted on from there
      (take<j>(a.params[j], n, given, place), ...);
    }

    // What a parameter does not need is not compiled for it: a kernel may have many.
    template <int j, class Given>
    __device__ __forceinline__ void take(const ParamSource& param, Neurons n, const Given& given, ParamPlace& place) {
      if constexpr (Given::has(j)) {
#pragma unroll
        for (int k = 0; k < W; ++k) of[k][j] = given.value(j, k);
      } else {
        load<j>(param, n, place);
      }
    }

    template <int j>
    __device__ __forceinline__ void load(const ParamSource& param, Neurons n, ParamPlace& place) {
      constexpr bool is_tensor = Spec::param(j) != Source::absent;
      constexpr Spread spread = Spec::spread(j);
      if constexpr (spread == Spread::by_warp || (spread == Spread::by_channel && Spec::neighbours))
        place.template find<Spec::wide>(param, n.first);
      ParamPlace at = place;
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if constexpr (!is_tensor) {
          of[k][j] = static_cast<F>(param.number);
        } else if constexpr (spread == Spread::one || spread == Spread::by_neuron) {
          of[k][j] = load_as<F>(Spec::param(j), param.data, spread == Spread::one ? 0 : n.neuron(k));
        } else {
          if constexpr (spread == Spread::by_channel && !Spec::neighbours) {
            at = {};
            at.template find<Spec::wide>(param, n.neuron(k));
          }
          of[k][j] = load_as<F>(Spec::param(j), param.data, at.channel);
          if constexpr (spread == Spread::by_channel && Spec::neighbours) at.step();
        }
      }
      if constexpr (is_tensor) {
#pragma unroll
        for (int k = 0; k < W; ++k) legal[k] = legal[k] && is_legal(j, of[k][j]);
      }
    }

    static __device__ __forceinline__ bool is_legal(int j, F value) {
      if (Spec::legal(j) == Legal::any) return value == value;
      return Spec::legal(j) == Legal::unchecked || (Spec::least(j) <= value && value <= Spec::most(j));
    }
  };

  // A value that is not legal is NaN in all that the neuron computes: no kernel can refuse it.
  template <class CellDraws>
  static __device__ __forceinline__ Cell make_cell(const double* constants, const Params& given, int k,
                                                   const CellDraws& of_cell) {
    F params[room(P)];
#pragma unroll
    for (int j = 0; j < P; ++j) params[j] = !checks_params() || given.legal[k] ? given.of[k][j] : poison(j);
    if constexpr (draws)
      return Cell(params, typename Spec::Surrogate(constants), Options{}, of_cell.at(k, 0));
    else
      return Cell(params, typename Spec::Surrogate(constants), Options{});
  }

  // ---- random numbers ----

  struct NoDraws {};
  template <bool any, int width>
  struct DrawsOfCells {
    using type = NoDraws;
  };
  template <int width>
  struct DrawsOfCells<true, width> {
    using type = NeuronDraws<width, Spec::draws_in_order, Spec::neighbours>;
  };
  using CellDraws = typename DrawsOfCells<draws, W>::type;

  template <class Args>
  static __device__ __forceinline__ CellDraws draws_of(const Args& a, Neurons n) {
    if constexpr (!draws)
      return {};
    else if constexpr (has_lengths || has_start)
      return {static_cast<const WithDraws<WithSamples<Args>>&>(a).draws, n};
    else
      return {static_cast<const WithDraws<Args>&>(a).draws, n};
  }

  struct Cells : CellDraws {
    Cell cell[W];

    template <class Args, class Given = NoneGiven>
    __device__ __forceinline__ Cells(const Args& a, Neurons n, const Given& given = {})
        : Cells(a.constants, Params(a, n, given), draws_of(a, n), typename IndicesBelow<W>::type{}) {}

    // Step t of the sequence, of the thread's neuron k.
    __device__ __forceinline__ void step(int k, long long t, const F* x, F* state, F* y) const {
      if constexpr (draws)
        cell[k].step(x, state, y, this->at(k, t));
      else
        cell[k].step(x, state, y);
    }
    __device__ __forceinline__ void vjp(int k, long long t, const F* x, const F* state, const F* grad_y, F* grad_state,
                                        F* grad_x, F* grad_param) const {
      if constexpr (draws)
        cell[k].vjp(x, state, grad_y, grad_state, grad_x, grad_param, this->at(k, t));
      else
        cell[k].vjp(x, state, grad_y, grad_state, grad_x, grad_param);
    }
    __device__ __forceinline__ void finish(int k, const F* grad_initial, F* grad_param) const {
      if constexpr (draws)
        cell[k].finish(grad_initial, grad_param, this->at(k, 0));
      else
        cell[k].finish(grad_initial, grad_param);
    }

   private:
    template <int... k>
    __device__ __forceinline__ Cells(const double* constants, const Params& params, const CellDraws& of_cells,
                                     Indices<k...>)
        : CellDraws(of_cells), cell{make_cell(constants, params, k, of_cells)...} {}
  };

  template <class Args>
  static __device__ __forceinline__ void load_initial(const Args& a, const Cells& cells, Neurons n,
                                                      F (&state)[W][room(S)]) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      cells.cell[k].initial(state[k]);
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (Spec::initial(s) != Source::absent) state[k][s] = load_as<F>(Spec::initial(s), a.initial[s], n.neuron(k));
    }
    if (checks_params() && has_nan) {
      // Read once more, rather than kept in a register through the loop of the backward pass.
      const Params params(a, n);
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) state[k][s] = params.legal[k] ? state[k][s] : poison(0);
    }
  }

  // ---- samples ----

  template <class Args>
  static __device__ __forceinline__ Neurons neurons_of(const Args& a, long long thread, long long at_once) {
    Neurons n = Neurons::of(thread, at_once);
    if constexpr (has_lengths || has_start) {
      const SampleArgs& samples = static_cast<const WithSamples<Args>&>(a).samples;
      n.steps = static_cast<int>(a.steps);
      if constexpr (has_lengths) {
        const int length = samples.lengths[n.first / samples.lengths_inner % samples.lengths_count];
        n.steps = length < 0 ? 0 : length < n.steps ? length : n.steps;
      }
      if constexpr (has_start) {
        n.anew = samples.start + n.first / samples.start_inner % samples.start_count;
        n.anew_stride = samples.start_stride;
      }
    }
    return n;
  }

  template <class Args>
  static __device__ __forceinline__ int steps_of(const Args& a, const Neurons& n) {
    if constexpr (has_lengths)
      return n.steps;
    else
      return static_cast<int>(a.steps);
  }

  // Whether the sample has no step t, though there is one.
  static __device__ __forceinline__ bool is_behind(const Neurons& n, int t) {
    if constexpr (has_lengths)
      return t >= n.steps;
    else
      return false;
  }

  // Whether the thread's sample starts anew before each of so many steps: read ahead, as the steps are.
  template <int steps>
  struct Starts {
    bool before[has_start ? steps : 1];

    __device__ __forceinline__ void load(const Neurons& n, int u, long long t, bool there) {
      if constexpr (has_start) before[u] = there && n.anew[t * n.anew_stride];
    }
  };

  template <int steps>
  static __device__ __forceinline__ void restart(const Cells& cells, const Starts<steps>& starts, int u,
                                                 F (&state)[W][room(S)]) {
    if constexpr (has_start) {
      if (!starts.before[u]) return;
#pragma unroll
      for (int k = 0; k < W; ++k) cells.cell[k].initial(state[k]);
    }
  }

  // Gradients of the states at which samples start anew.
  struct OfStarts {
    F state[has_start ? W : 1][room(S)];

    __device__ __forceinline__ OfStarts() {
      if constexpr (has_start)
        for (auto& of_neuron : state)
          for (F& sum : of_neuron) sum = F(0);
    }
  };

  // The gradient of these states is that of the cell's own, and none of those before.
  template <int steps>
  static __device__ __forceinline__ void cut(const Starts<steps>& starts, int u, F (&grad_state)[W][room(S)],
                                             OfStarts& of_starts) {
    if constexpr (has_start) {
#pragma unroll
      for (int k = 0; k < W; ++k)
#pragma unroll
        for (int s = 0; s < S; ++s) {
          of_starts.state[k][s] += select(starts.before[u], grad_state[k][s], F(0));
          grad_state[k][s] = select(starts.before[u], F(0), grad_state[k][s]);
        }
    }
  }

  // Zeros behind the sample's end, in every `apart`-th row.
  template <class Row, class Args>
  static __device__ __forceinline__ void clear_behind(const Args& a, void* data, const Neurons& n, int first = 0,
                                                      int apart = 1) {
    if constexpr (has_lengths) {
      Cursor<Row> rows = rows_of<Row>(data, n.steps + first, a.neurons, n, apart);
      for (int t = n.steps + first; t < a.steps; t += apart)
        Neurons::store(rows.next(), Pack<Row, W, Spec::neighbours>{});
    }
  }

  // A tensor of ours, [T, N] or [N], from row t on.
  template <class T>
  static __device__ __forceinline__ Cursor<T> rows_of(void* data, long long t, long long neurons, Neurons n,
                                                      int direction = 1) {
    return {static_cast<T*>(data) + t * neurons + n.first, direction * neurons};
  }

  // A caller's sequence, whose rows may all be the same, or one element each: then it is spread over the lanes.
  template <class T>
  static __device__ __forceinline__ Cursor<const T> rows_of(const Rows& rows, long long t, Neurons n,
                                                            bool one_element = false) {
    return {static_cast<const T*>(rows.data) + t * rows.time_stride + (one_element ? 0 : n.first), rows.time_stride};
  }

  template <class T>
  static __device__ __forceinline__ Pack<T, W, Spec::neighbours> load(const T* row, bool one_element = false) {
    if (!one_element) return Neurons::load(row);
    Pack<T, W, Spec::neighbours> pack;
    pack.fill(*row);
    return pack;
  }

  static __device__ __forceinline__ void store_state(F* row, const F (&state)[W][room(S)], int s) {
    StatePack pack;
#pragma unroll
    for (int k = 0; k < W; ++k) pack.lane[k] = state[k][s];
    Neurons::store(row, pack);
  }

  // A way out that is never taken, and that the compiler has to keep: it moves no access across. In the forward pass it
  // would compute many steps first, each waiting for the one before, and store afterwards; in the backward pass, load
  // late (T = 32, N = 2^22, float32 on an H200: 1.13 of the bytes' time, with all loads first 1.03).
  template <class Args>
  static __device__ __forceinline__ bool never(const Args& a) {
    return a.neurons < 0;
  }

  // ---- forward ----

  static constexpr int K = Spec::rows;
  static_assert((K & (K - 1)) == 0, "a power of two: step_and_store");

  struct ForwardCursors {
    Cursor<const Input> x[I];
    Cursor<Input> y[O];
    Cursor<F> states[room(S)];
    Cursor<F> checkpoints;  // one state after the other
    PackedRow<Neurons, W, Spec::packed_bits> packed;

    // From step t on, the first of a segment.
    __device__ __forceinline__ ForwardCursors(const ForwardArgs<Cell>& a, Neurons n, long long t = 0)
        : checkpoints(rows_of<F>(a.checkpoints, t > 0 ? (t / C - 1) * S : 0, a.neurons, n)),
          packed(a.packed, a.packed_valid, a.neurons, n) {
#pragma unroll
      for (int c = 0; c < I; ++c) x[c] = rows_of<Input>(a.x[c], t, n);
#pragma unroll
      for (int c = 0; c < O; ++c) y[c] = rows_of<Input>(a.y[c], t, a.neurons, n);
#pragma unroll
      for (int s = 0; s < S; ++s) states[s] = rows_of<F>(a.states[s], Spec::store_states ? t : 0, a.neurons, n);
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

  // `u` is the step's number in the turn of an unrolled loop, of U steps: most of them are no checkpoint whatever t is.
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

  // What a thread takes: neurons so far apart, up from the first or down, as long as they are among `count` from `low`
  // on.
  struct Turns {
    Neurons first;
    long long apart, low, count;

    __device__ __forceinline__ bool have(Neurons n) const {
      return static_cast<unsigned long long>(n.start - low) < static_cast<unsigned long long>(count);
    }
  };

  template <class Args>
  static __device__ __forceinline__ Turns turns(const Args& a, long long thread, long long at_once) {
    return {neurons_of(a, thread, at_once), at_once, 0, a.neurons};
  }

  static __device__ __forceinline__ void forward(const ForwardArgs<Cell>& a, Turns turns) {
    Neurons n = turns.first;
    ForwardCursors cursors(a, n);
    InputPack x[K][I];
    Starts<K> starts;
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
                                                    InputPack (&x)[K][I], Starts<K>& starts) {
#pragma unroll
    for (int u = 0; u < K; ++u) {
      from.load_inputs(x[u], u < steps_of(a, n));
      starts.load(n, u, u, u < steps_of(a, n));
    }
  }

  // Row t is computed from x[t % K], which then takes up row t + K: K rows are on their way at any time.
  static __device__ __forceinline__ void walk_sequence(const ForwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                       ForwardCursors& cursors, InputPack (&x)[K][I],
                                                       Starts<K>& starts) {
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
    for (int c = 0; c < O; ++c) clear_behind<Input>(a, a.y[c], n);
#pragma unroll
    for (int s = 0; s < S; ++s)
      if (Spec::store_states) clear_behind<F>(a, a.states[s], n);
  }

  // The sequence of a thread's neurons, of at most or just `most` steps, each of whose rows load(row, t) gives.
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
    if (Spec::store_states) return;
#pragma unroll
    for (int s = 0; s < S; ++s) store_state(to.states[s].at, state, s);
  }

  // ---- forward, staged: the rows on their way go through shared memory ----
  //
  // For few neurons, whose step is over long before a row has come: more rows than registers can hold, in a loop short
  // enough for the instruction cache. Each thread stages its own neurons, so no thread waits for another.

  static __device__ __forceinline__ void forward_staged(const ForwardArgs<Cell>& a) {
    constexpr int U = 8;  // rows a turn
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

  // ---- backward: segments from the last to the first, each recomputed from its checkpoint ----

  // What is done about steps behind the end of the sequence: there are none, they are skipped; or they are computed on
  // zeros and their results dropped, since branches would part what the passes over a segment share.
  enum class Behind { none, skipped, dropped };

  // The steps of a segment from t0 on, as they come from memory.
  struct SegmentRows {
    static constexpr bool is_shared = false;
    int t0, length;
    InputPack x[C][I], grad_y[C][O];
    Starts<C> starts;

    __device__ __forceinline__ const InputPack& input(int u, int c) const { return x[u][c]; }
    __device__ __forceinline__ const InputPack& upstream(int u, int c) const { return grad_y[u][c]; }
  };
  // With rows from wherever they are.
  template <class SegmentRows>
  struct SegmentOf : SegmentRows {
    F before[C][W][room(S)];  // each step
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
      Cursor<const Input> rows = rows_of<Input>(a.x[c], t0, n);
#pragma unroll
      for (int u = 0; u < C; ++u) {
        if (behind != Behind::none) to.x[u][c] = InputPack{};
        const Input* row = rows.next();
        if (behind == Behind::none || u < to.length) to.x[u][c] = Neurons::load(row);
      }
    }
#pragma unroll
    for (int c = 0; c < O; ++c) {
      Cursor<const Input> rows = rows_of<Input>(a.grad_y[c], t0, n, Spec::one_grad_y(c));
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
    Cursor<const F> rows =
        rows_of<const F>(const_cast<void*>(a.checkpoints), static_cast<long long>(t0 / C - 1) * S, a.neurons, n);
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

  // The gradient of the states after step t, as far as the caller sent one.
  static __device__ __forceinline__ void add_grad_states(const BackwardArgs<Cell>& a, int t, Neurons n,
                                                         F (&grad_state)[W][room(S)]) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (!Spec::has_grad_state(s)) continue;
      const StatePack pack =
          load(rows_of<F>(a.grad_states[s], t, n, Spec::one_grad_state(s)).at, Spec::one_grad_state(s));
#pragma unroll
      for (int k = 0; k < W; ++k) grad_state[k][s] += pack.lane[k];
    }
  }

  // grad_state goes from after step u of the segment to before it.
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
    for (int c = 0; c < I; ++c) rows[c] = rows_of<Input>(a.grad_x[c], segment.t0 + C - 1, a.neurons, n, -1);
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
        if (Spec::wants_grad_x(c) && there) Neurons::store(row, values);
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

  // Of the states before the first step. What belongs to states that the cell made itself is added to `own`.
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

  // The whole sequence of a thread's neurons.
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
      if (Spec::wants_grad_x(c)) clear_behind<Input>(a, a.grad_x[c], n, first, apart);
  }

  static __device__ __forceinline__ void backward(const BackwardArgs<Cell>& a) {
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long at_once = Spec::in_turns ? a.at_once : a.neurons;
    if (thread >= Neurons::threads(at_once)) return;
    const Turns all = turns(a, thread, at_once);
    backward(a, all, [&](const Gradients& grad) { store_grad_params(a, all.first, grad); });
  }

  // `use` is given the gradients of parameters, summed over the turns in registers.
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

  // The rows of the next turn are on their way while one is computed.
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

  // The sequence of a thread's neurons, which is one segment.
  template <class Segment>
  static __device__ __forceinline__ void backward_rows(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                       Segment& segment, Gradients& grad, F (&own)[W][room(S)]) {
    constexpr Behind behind = Spec::ragged ? Behind::skipped : Behind::none;
    grad.clear_states();
    if (!Spec::store_states) add_grad_states(a, 0, n, grad.state);
    recompute<behind>(a, cells, n, segment);
    if constexpr (Segment::is_shared) asm volatile("" ::: "memory");  // read once more, rather than kept in registers
    walk_back<behind>(a, cells, n, segment, grad.state, grad.param, grad.of_starts);
    store_grad_initial(a, n, grad, own);
  }

  // ---- backward, time-parallel: the warps of a block take the segments of the same neurons side by side ----
  //
  // The gradient of the states before a segment is an affine function of that after it, known once the segment is
  // recomputed. Each warp finds its own; joined in a fixed order they give each warp what arrives behind its segment.

  static constexpr int G = Spec::segments;  // in a block

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
      vjp<behind>(cells, segment, u, true, grad, unused_x, unused_param);
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
        vjp<behind>(cells, segment, u, false, grad, unused_x, unused_param);
        cut(segment.starts, u, grad, unused_states);
      }
#pragma unroll
      for (int s = 0; s < S; ++s)
#pragma unroll
        for (int k = 0; k < W; ++k) map.linear[s][from][k][lane] = grad[k][s];
    }
  }

  // Without its constant: to a column of another map.
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
          // Nothing comes of nothing, even where the product of a segment's derivatives is infinite; nor of an infinite
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

  // Adds up what the warps of the block found for their segments, in their order, for the first of them.
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

  // Of no steps, a segment's map is the identity.
  template <Behind behind>
  static __device__ __forceinline__ void backward_group(const BackwardArgs<Cell>& a, const Cells& cells, Neurons n,
                                                        int t0, AffineMaps (&maps)[G], Gradients& grad) {
    const int g = threadIdx.x / 32;
    Segment segment;
    load_rows<behind>(a, n, t0, segment);
    recompute<behind>(a, cells, n, segment);
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
    walk_back<behind>(a, cells, n, segment, arriving, grad.param, grad.of_starts);
  }

  // The block's warps have the same neurons, so all of them find the same.
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
