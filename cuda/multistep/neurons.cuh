// A thread's neurons in both passes of the multistep loop (multistep.cuh): their parameters, cells and random numbers,
// their samples, and the rows that they read and write.
//
// Short names in the multistep loop: F type of the arithmetic; I, O, S, P numbers of inputs, outputs, states and
// parameters of the cell; W neurons per thread; C steps between checkpoints; T any stored type.
#pragma once

#include "csrc/neuron/cell.h"
#include "csrc/neuron/draws.h"
#include "csrc/neuron/options.h"
#include "csrc/neuron/surrogate.h"
#include "cuda/rows.cuh"
#include "cuda/samples.cuh"

namespace spikeforge {

// The size of an array: a cell may have no state or no parameter, an array has at least one element.
__device__ constexpr int room(int count) { return count > 0 ? count : 1; }

template <int... k> struct Indices {};
template <int n, int... k> struct IndicesBelow : IndicesBelow<n - 1, n - 1, k...> {};
template <int... k> struct IndicesBelow<0, k...> { using type = Indices<k...>; };

// True if the Spec sets it.
template <class Spec, class = int> struct StoresOf { static constexpr bool whole = false; };
template <class Spec> struct StoresOf<Spec, decltype(static_cast<int>(Spec::whole_stores))> {
  static constexpr bool whole = Spec::whole_stores;
};

// Seed and offset are read from device memory, so that replays of a captured graph draw other numbers when they change.
// Neuron i in memory has the index of its position in the shape: see DrawsView of kernels/multistep/launch.h.
struct DrawArgs {
  const long long* seed;
  long long seed_number;
  const long long* offset;
  long long offset_number;
  long long fast, slow;
  long long first;

  __device__ __forceinline__ DoubleWord key() const { return seed != nullptr ? *seed : seed_number; }
  __device__ __forceinline__ DoubleWord first_step() const { return offset != nullptr ? *offset : offset_number; }
  __device__ __forceinline__ DoubleWord index_of(long long i) const {
    const long long row = i / fast, column = i % fast;
    return row / slow * (fast * slow) + column * slow + row % slow + first;
  }
};

template <class Args> struct WithDraws : Args { DrawArgs draws; };

// True if the cell draws random numbers.
template <class Cell, class = int> struct DrawsOf { static constexpr bool any = false; };
template <class Cell> struct DrawsOf<Cell, decltype(static_cast<int>(Cell::draws))> {
  static constexpr bool any = Cell::draws;
};

// The draws of a thread's W neurons. `in_order`: neurons are stored in the order of the shape, and the index of the
// first is a multiple of 4. Neighbours then begin at a multiple of W and share calls of Philox.
template <int W, bool in_order, bool neighbours> struct NeuronDraws {
  static constexpr bool share = in_order && neighbours && (W == 2 || W == 4);
  static constexpr int W_or_one = share ? 1 : W;
  DoubleWord key, first_step, index[W_or_one];

  template <class Neurons>
  __device__ __forceinline__ NeuronDraws(const DrawArgs& args, const Neurons& n)
      : key(args.key()), first_step(args.first_step()) {
#pragma unroll
    for (int k = 0; k < W_or_one; ++k) index[k] = in_order ? args.first + n.neuron(k) : args.index_of(n.neuron(k));
  }

  __device__ __forceinline__ Draws at(int k, long long t) const {
    const DoubleWord own = index[share ? 0 : k];
    const Word lane = static_cast<Word>(own) % 4 + (share ? k : 0);
    return {key, own / 4, W == 4 && share ? k : lane, first_step + t};
  }
};

template <class Spec> struct MultistepNeurons {
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
  template <bool of_samples, class AnyLanes> struct NeuronsOf { using type = AnyLanes; };
  template <class AnyLanes> struct NeuronsOf<true, AnyLanes> { using type = OfSample<AnyLanes>; };
  using Neurons = typename NeuronsOf<has_lengths || has_start, Lanes<W, Spec::neighbours, StoresOf<Spec>::whole>>::type;
  using InputPack = Pack<Input, W, Spec::neighbours>;
  using StatePack = Pack<F, W, Spec::neighbours>;

  // True if the neurons of a warp have the same value of a parameter.
  static __device__ constexpr bool shared(int j) {
    return Spec::spread(j) == Spread::one || Spec::spread(j) == Spread::by_warp;
  }

  static __device__ constexpr bool checks_params() {
    for (int j = 0; j < P; ++j)
      if (Spec::legal(j) != Legal::unchecked) return true;
    return false;
  }

  // True if the type has NaN.
  static constexpr bool has_nan = F(.5) != F(0);
  static __device__ __forceinline__ F poison(int j) {
    if constexpr (has_nan)
      return F(0) / F(0);
    else
      return F(Spec::poison(j));
  }

  // The default of values that replace those of the arguments: none.
  struct NoneGiven {
    static __device__ constexpr bool has(int) { return false; }
    __device__ __forceinline__ F value(int, int) const { return F(0); }
  };

  // The parameters of the thread's neurons. Returns false if the value of a tensor is not legal.
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
      ParamPlace place;  // of the first neuron; its neighbours follow from it
      (take<j>(a.params[j], n, given, place), ...);
    }

    // Code for a parameter is compiled only if the parameter needs it: a kernel may have many.
    template <int j, class Given>
    __device__ __forceinline__ void take(const ParamSource& param, Neurons n, const Given& given, ParamPlace& place) {
      if constexpr (Given::has(j)) {
#pragma unroll
        for (int k = 0; k < W; ++k) of[k][j] = given.value(j, k);
      } else {
        load<j>(param, n, place);
      }
    }

    template <int j> __device__ __forceinline__ void load(const ParamSource& param, Neurons n, ParamPlace& place) {
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

  // Replaces an invalid value by NaN in all results of the neuron, because a kernel cannot raise an error.
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
  template <bool any, int width> struct DrawsOfCells { using type = NoDraws; };
  template <int width> struct DrawsOfCells<true, width> {
    using type = NeuronDraws<width, Spec::draws_in_order, Spec::neighbours>;
  };
  using CellDraws = typename DrawsOfCells<draws, W>::type;

  template <class Args> static __device__ __forceinline__ CellDraws draws_of(const Args& a, Neurons n) {
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

    // Runs step t of the thread's neuron k.
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
      // Reloaded here, which saves registers in the loop of the backward pass.
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

  template <class Args> static __device__ __forceinline__ int steps_of(const Args& a, const Neurons& n) {
    if constexpr (has_lengths)
      return n.steps;
    else
      return static_cast<int>(a.steps);
  }

  // True if step t is after the end of the sample.
  static __device__ __forceinline__ bool is_behind(const Neurons& n, int t) {
    if constexpr (has_lengths)
      return t >= n.steps;
    else
      return false;
  }

  // For each of `steps` steps, true if the thread's sample restarts before it. They are loaded ahead, like the rows.
  template <int steps> struct Starts {
    bool before[has_start ? steps : 1];

    __device__ __forceinline__ void load(const Neurons& n, int u, long long t, bool there) {
      if constexpr (has_start) before[u] = there && n.anew[t * n.anew_stride] != 0;
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

  // Gradients of the initial states of samples that restart.
  struct OfStarts {
    F state[has_start ? W : 1][room(S)];

    __device__ __forceinline__ OfStarts() {
      if constexpr (has_start)
        for (auto& of_neuron : state)
          for (F& sum : of_neuron) sum = F(0);
    }
  };

  // Moves the gradient of these states to the cell's initial states; earlier states receive none.
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

  // Writes zeros after the sample's end, in every `apart`-th row.
  template <class Row, class Args>
  static __device__ __forceinline__ void clear_behind(const Args& a, void* data, const Neurons& n, int first = 0,
                                                      int apart = 1) {
    if constexpr (has_lengths) {
      Cursor<Row> rows = rows_of<Row>(data, n.steps + first, a.neurons, n, apart);
      for (int t = n.steps + first; t < a.steps; t += apart)
        Neurons::store(rows.next(), Pack<Row, W, Spec::neighbours>{});
    }
  }

  // A cursor at row t of a tensor that this library allocated, [T, N] or [N].
  template <class T>
  static __device__ __forceinline__ Cursor<T> rows_of(void* data, long long t, long long neurons, Neurons n,
                                                      int direction = 1) {
    return {static_cast<T*>(data) + t * neurons + n.first, direction * neurons};
  }

  // A cursor at row t of a caller's sequence. Its rows may be identical, or consist of one element that is broadcast to
  // the lanes.
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

  // An exit that is never taken, but that the compiler has to keep, so that it does not move memory accesses across.
  // Otherwise it would delay the stores of the forward pass until many steps are computed, and the loads of the
  // backward pass (T = 32, N = 2^22, float32 on an H200: 1.13 of the bytes' time, with all loads first 1.03).
  template <class Args> static __device__ __forceinline__ bool never(const Args& a) { return a.neurons < 0; }

  // A thread's turns: neurons at a fixed distance, upward from the first or downward, within `count` neurons from `low`
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
};

}  // namespace spikeforge
