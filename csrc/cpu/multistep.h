// The multistep loop on the CPU: the one loop over T that runs a cell, forward and backward, over a tile of neurons
// whose states stay in the cache. It knows rows, tiles and checkpoints, and nothing of any neuron.
//
// Rows run along N, so that every access is a contiguous stream; the time loop is outside the loop over the tile's
// vectors. What bounds it is memory. Hence results that no cache would hold are written past the caches, and each row
// fetches the one that is read next: the processor's own prefetch starts anew with every row. LIF, float32, T=16,
// N=2^20 on one Zen 4 core, forward in GB/s of x and spikes for tiles of 512, 1024, 2048, 4096, 16384, where a copy
// reaches 24 and one past the caches 36: plain 13, 14, 14, 16, 17; past the caches 17, 18, 17, 22, 24; and with the
// next row 24, 28, 29, 34, 30. A segment of the backward pass is recomputed at the pace of memory and run backward at
// that of arithmetic: hence its vjps fetch the inputs of the next segment as well. LIF with the sigmoid surrogate,
// float32, T=16, N=2^20, ns for 16 neurons and a step: 11.8 without, 9.1 with them, 8.3 with all data in the cache.
#pragma once

#include <spikeforge/cpu/any_surrogate.h>
#include <spikeforge/cpu/vec.h>
#include <spikeforge/neuron/cell.h>
#include <spikeforge/runtime/launch.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Vectors that are put together before they are written so, a few KiB.
constexpr std::int64_t staging_vectors = 128;

// Hands out aligned pieces of the caller's scratch memory; with no memory, it only counts.
class Scratch {
 public:
  explicit Scratch(void* memory) : base_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(std::int64_t n) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }

  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

// A spiking forward pass calls no surrogate; its other choices the compiler takes out of the loop.
struct SpikingOptions {
  static constexpr bool spiking = true;
  bool hard_reset, detach_reset, decay_input;

  SpikingOptions(const NeuronOptions& o)
      : hard_reset(o.hard_reset), detach_reset(o.detach_reset), decay_input(o.decay_input) {}
};

// What most networks are trained with.
struct UsualOptions {
  static constexpr bool hard_reset = true, spiking = true, decay_input = true;
  bool detach_reset;

  UsualOptions(const NeuronOptions& o) : detach_reset(o.detach_reset) {}
  static bool serve(const NeuronOptions& o) { return o.hard_reset && o.spiking && o.decay_input; }
};

// Neuron::Cell<Surrogate, Options> is the cell.
template <class Neuron, class T, class Stored>
class Multistep {
  using V = Vec<T>;
  using Cell = typename Neuron::template Cell<AnySurrogate<V>, NeuronOptions>;
  static constexpr int lanes = V::lanes;
  static constexpr int S = Cell::n_states;
  static constexpr int P = Cell::n_params;

  // A vector of neurons within the tile: which it is, and how many of its lanes are neurons.
  struct Lane {
    std::int64_t vector, neuron;
    int count;
  };

  const MultistepLaunch& launch_;
  const std::int64_t begin_, end_;
  const std::int64_t full_;  // vectors all of whose lanes are neurons
  const int tail_;           // neurons after them
  const std::int64_t vectors_;
  // Without tensor parameters all neurons share one cell.
  std::int64_t cell_stride_;
  Cell* cells_;

  Multistep(const MultistepLaunch& launch, std::int64_t begin, std::int64_t end, Scratch& scratch)
      : launch_(launch),
        begin_(begin),
        end_(end),
        full_((end - begin) / lanes),
        tail_(static_cast<int>((end - begin) % lanes)),
        vectors_(full_ + (tail_ > 0)),
        cell_stride_(0) {
    for (int j = 0; j < P; ++j)
      if (launch.params[j].data != nullptr) cell_stride_ = 1;
    cells_ = scratch.take<Cell>(cell_stride_ == 0 ? 1 : vectors_);
  }

  template <class Body>
  void for_each_vector(Body&& body) const {
    for (std::int64_t v = 0; v < vectors_; ++v) body(Lane{v, begin_ + v * lanes, v < full_ ? lanes : tail_});
  }

  const Cell& cell(const Lane& lane) const { return cells_[lane.vector * cell_stride_]; }

  // ---- a vector that may be partial; the lanes beyond `count` read as 0 ----

  template <class Element>
  static void copy(const Element* from, int count, Element* to) {
    std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(count) * sizeof(Element));
  }

  template <class Element>
  static V load_some(const Element* p, int count) {
    if (count == lanes) return load_row<T>(p);
    Element padded[lanes] = {};
    copy(p, count, padded);
    return load_row<T>(padded);
  }

  template <class Element>
  static void store_some(Element* p, V x, int count) {
    if (count == lanes) return store_row<T>(p, x);
    Element padded[lanes];
    store_row<T>(padded, x);
    copy(padded, count, p);
  }

  // States and parameters have the type of x or of the arithmetic.
  V load_either(const void* data, DType type, std::int64_t i, int count) const {
    return type == launch_.type ? load_some(static_cast<const Stored*>(data) + i, count)
                                : load_some(static_cast<const T*>(data) + i, count);
  }

  void store_either(void* data, DType type, std::int64_t i, V x, int count) const {
    type == launch_.type ? store_some(static_cast<Stored*>(data) + i, x, count)
                         : store_some(static_cast<T*>(data) + i, x, count);
  }

  T load_one(const void* data, DType type, std::int64_t i) const {
    return type == launch_.type ? static_cast<T>(static_cast<const Stored*>(data)[i]) : static_cast<const T*>(data)[i];
  }

  // ---- cells and states before the first step ----

  V load_param(const ParamView& param, const Lane& lane) const {
    if (param.data == nullptr) return V(param.number);
    const std::int64_t first = lane.neuron / param.inner, place = first % param.count;
    if (lane.neuron - first * param.inner + lane.count <= param.inner)
      return V(static_cast<double>(load_one(param.data, param.type, place)));
    T values[lanes];
    for (int k = 0; k < lanes; ++k) {
      const std::int64_t neuron = lane.neuron + (k < lane.count ? k : 0);
      values[k] = load_one(param.data, param.type, (neuron / param.inner) % param.count);
    }
    return load_row<T>(values);
  }

  void make_cells() const {
    const AnySurrogate<V> surrogate(launch_);
    const auto make = [&](const Lane& lane) {
      V params[P];
      for (int j = 0; j < P; ++j) params[j] = load_param(launch_.params[j], lane);
      new (&cells_[lane.vector]) Cell(params, surrogate, launch_.options);
    };
    if (cell_stride_ == 0) {
      make(Lane{0, begin_, 1});
    } else {
      for_each_vector(make);
    }
  }

  void load_initial(const Lane& lane, V* state) const {
    cell(lane).initial(state);
    for (int s = 0; s < S; ++s) {
      const StateView& given = launch_.initial[s];
      if (given.data != nullptr) state[s] = load_either(given.data, given.type, lane.neuron, lane.count);
    }
  }

  // ---- rows of the tile ----

  // Step t of a sequence. One that is missing, or expanded from one element, is written out into `row`.
  template <class Element>
  const Element* row_of(const SequenceView& view, std::int64_t t, Element* row) const {
    if (is_dense(view)) return tile_at<Element>(view, t, begin_);
    const Element value = view.data ? static_cast<const Element*>(view.data)[t * view.time_stride] : Element(0);
    for (std::int64_t i = 0; i < vectors_ * lanes; ++i) row[i] = value;
    return row;
  }

  static bool is_dense(const SequenceView& view) { return view.data != nullptr && view.neuron_stride != 0; }

  template <class Element>
  static const Element* tile_at(const SequenceView& view, std::int64_t t, std::int64_t neuron) {
    return static_cast<const Element*>(view.data) + t * view.time_stride + neuron;
  }

  // What is read after row `now`: step t, or, where there is none, step `first` of the next tile.
  const Stored* row_after(const SequenceView& view, const Stored* now, std::int64_t t, std::int64_t first) const {
    if (!is_dense(view)) return now;
    if (t >= 0 && t < launch_.steps) return tile_at<Stored>(view, t, begin_);
    return end_ < launch_.neurons ? tile_at<Stored>(view, first, end_) : now;
  }

  // What recompute() reads of the segment after that of steps t0 to t, whose steps run backward: as many rows from its
  // end on. The segment is the one before in time, or the next tile's, of the steps from `last` on.
  const Stored* row_later(const SequenceView& view, const Stored* now, std::int64_t t, std::int64_t t0,
                          std::int64_t last) const {
    if (t0 > 0) return row_after(view, now, 2 * t0 - 1 - t, 0);
    const std::int64_t row = launch_.steps - 1 - t;
    return row < last ? now : row_after(view, now, -1, row);
  }

  // The vector after the full ones, as a row of its own.
  const Stored* tail_of(const Stored* row, Stored (&padded)[lanes]) const {
    std::memset(static_cast<void*>(padded), 0, sizeof padded);
    copy(row + full_ * lanes, tail_, padded);
    return padded;
  }

  void store_tail(Stored* row, const Stored* values) const { copy(values, tail_, row + full_ * lanes); }

  // Into every S-th vector.
  void load_state_row(const void* result, std::int64_t row, V* states) const {
    const T* from = static_cast<const T*>(result) + row * launch_.neurons + begin_;
    for (std::int64_t v = 0; v < vectors_; ++v) states[v * S] = load_some(from + v * lanes, v < full_ ? lanes : tail_);
  }

  // The row of state s before step t.
  std::int64_t checkpoint_row(std::int64_t t, int s) const { return (t / launch_.checkpoint_length - 1) * S + s; }

  // How a result of so many rows is written: past the caches, where it is too large for its reader to find it there;
  // from the registers, where rows begin on cache lines, else from a piece of a row that is put together in the cache.
  // Staging costs 5 % (float16, forward), an odd N written through the caches 25 % (float32).
  enum class Writing { cached, streamed, staged };

  template <class Element>
  Writing writing_of(const Element* data, std::int64_t rows) const {
    constexpr std::int64_t element = sizeof(Element);
    if (data == nullptr || rows * launch_.neurons * element < large_result) return Writing::cached;
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(data) % line_bytes == 0 && launch_.neurons * element % line_bytes == 0;
    return aligned ? Writing::streamed : Writing::staged;
  }

  // Where the loop is not bound by memory, a jump does not matter.
  template <class Element>
  static void write(Element* p, V x, bool stream) {
    if (stream) [[likely]] {
      stream_row<T>(p, x);
    } else {
      store_row<T>(p, x);
    }
  }

  // ---- row kernels: one step of so many vectors ----
  //
  // Not inlined, so that a tail has no copy of its own. What the processor overlaps with waiting for memory is bounded
  // by the instructions that it holds: hence the kernels for the most usual choices. LIF, float32, T=16, N=2^20,
  // backward in copies of as many bytes: 2.0 with the options tested for each vector, 1.7 with those of UsualOptions
  // known.

  // The cell of each vector: its own, where a parameter is a tensor, or one that all have in common, a local copy that
  // no store can alias.
  class OwnCells {
   public:
    OwnCells(const MultistepLaunch&, const Cell* cells) : cells_(cells) {}
    const Cell& operator[](std::int64_t vector) const { return cells_[vector]; }

   private:
    const Cell* cells_;
  };

  template <class Surrogate, class Options>
  class CommonCell {
   public:
    CommonCell(const MultistepLaunch& launch, const Cell*) : cell_(make(launch)) {}
    const auto& operator[](std::int64_t) const { return cell_; }

   private:
    using Made = typename Neuron::template Cell<Surrogate, Options>;

    static Made make(const MultistepLaunch& launch) {
      V params[P];
      for (int j = 0; j < P; ++j) params[j] = V(launch.params[j].number);
      return Made(params, make_surrogate<Surrogate>(launch), launch.options);
    }

    Made cell_;
  };

  struct Step {
    const MultistepLaunch* launch;
    const Cell* cells;
    const Stored *x, *after;  // the row that is read next
    const V* before;          // [vectors, S]
    V* state;                 // [vectors, S], may be `before`
    Stored* y;
    bool stream = false;  // past the caches
    std::int64_t vectors = 0;
  };

  template <class Cells, bool outputs>
  [[gnu::noinline]] static void step_row(const Step& step) {
    const auto [launch, own, x, after, before, state, y, stream, vectors] = step;
    const Cells cells(*launch, own);
    for (std::int64_t v = 0; v < vectors; ++v) {
      prefetch(after + v * lanes);
      V now[S];
      for (int s = 0; s < S; ++s) now[s] = before[v * S + s];
      const V in = load_row<T>(x + v * lanes);
      V out;
      cells[v].step(&in, now, &out);
      for (int s = 0; s < S; ++s) state[v * S + s] = now[s];
      if constexpr (outputs) write(y + v * lanes, out, stream);
    }
  }

  struct VjpStep {
    const MultistepLaunch* launch;
    const Cell* cells;
    const Stored *x, *grad_y, *after, *later;  // the rows that are read next, and in the next segment
    const V* before;                           // [vectors, S]
    V* grad_state;                             // [vectors, S]
    V* grad_param;                             // [vectors, P]
    Stored* grad_x;
    bool stream = false;  // past the caches
    std::int64_t vectors = 0;
  };

  template <class Cells, bool with_params>
  [[gnu::noinline]] static void vjp_row(const VjpStep& step) {
    const auto [launch, own, x, grad_y, after, later, before, grad_state, grad_param, grad_x, stream, vectors] = step;
    const Cells cells(*launch, own);
    for (std::int64_t v = 0; v < vectors; ++v) {
      prefetch(after + v * lanes);
      prefetch(later + v * lanes);
      const V in = load_row<T>(x + v * lanes), grad_out = load_row<T>(grad_y + v * lanes);
      V state[S], grad[S], params[P] = {};
      for (int s = 0; s < S; ++s) state[s] = before[v * S + s];
      for (int s = 0; s < S; ++s) grad[s] = grad_state[v * S + s];
      if constexpr (with_params)
        for (int j = 0; j < P; ++j) params[j] = grad_param[v * P + j];
      V grad_in;
      cells[v].vjp(&in, state, &grad_out, grad, &grad_in, params);
      for (int s = 0; s < S; ++s) grad_state[v * S + s] = grad[s];
      if constexpr (with_params)
        for (int j = 0; j < P; ++j) grad_param[v * P + j] = params[j];
      write(grad_x + v * lanes, grad_in, stream);
    }
  }

  template <bool outputs>
  auto step_kernel() const {
    if (cell_stride_ != 0) return step_row<OwnCells, outputs>;
    return launch_.options.spiking ? step_row<CommonCell<NoSurrogate<V>, SpikingOptions>, outputs>
                                   : step_row<CommonCell<AnySurrogate<V>, NeuronOptions>, outputs>;
  }

  template <bool with_params>
  auto vjp_kernel() const {
    if (cell_stride_ != 0) return vjp_row<OwnCells, with_params>;
    if (UsualOptions::serve(launch_.options)) {
      if (launch_.surrogate == SurrogateKind::sigmoid)
        return vjp_row<CommonCell<Sigmoid<V>, UsualOptions>, with_params>;
      if (launch_.surrogate == SurrogateKind::atan) return vjp_row<CommonCell<Atan<V>, UsualOptions>, with_params>;
    }
    return vjp_row<CommonCell<AnySurrogate<V>, NeuronOptions>, with_params>;
  }

  // The same from vector v on.
  Step from(Step step, std::int64_t v) const {
    step.cells += v * cell_stride_;
    step.x += v * lanes;
    step.after += v * lanes;
    step.before += v * S;
    step.state += v * S;
    step.y += v * lanes;
    return step;
  }

  VjpStep from(VjpStep step, std::int64_t v) const {
    step.cells += v * cell_stride_;
    step.x += v * lanes;
    step.grad_y += v * lanes;
    step.after += v * lanes;
    step.later += v * lanes;
    step.before += v * S;
    step.grad_state += v * S;
    step.grad_param += v * P;
    step.grad_x += v * lanes;
    return step;
  }

  static Stored*& result_of(Step& step) { return step.y; }
  static Stored*& result_of(VjpStep& step) { return step.grad_x; }

  // The full vectors, in pieces of `staging_vectors` where they are staged.
  template <class AnyStep>
  void run_full(void (*kernel)(const AnyStep&), const AnyStep& step, Writing writing) const {
    if (writing != Writing::staged) {
      if (full_ > 0) kernel(step);
      return;
    }
    alignas(line_bytes) Stored staging[staging_vectors * lanes];
    for (std::int64_t v = 0; v < full_; v += staging_vectors) {
      AnyStep piece = from(step, v);
      piece.vectors = full_ - v < staging_vectors ? full_ - v : staging_vectors;
      Stored* target = result_of(piece);
      result_of(piece) = staging;
      kernel(piece);
      stream_bytes(target, staging, static_cast<std::size_t>(piece.vectors) * sizeof(Stored) * lanes);
    }
  }

  template <bool outputs>
  void run(Step step, Writing writing) const {
    step.stream = writing == Writing::streamed;
    step.vectors = full_;
    const auto kernel = step_kernel<outputs>();
    run_full(kernel, step, writing);
    if (tail_ == 0) return;
    Stored x[lanes], y[lanes];
    Step last = from(step, full_);
    last.x = last.after = tail_of(step.x, x);
    last.y = y;
    last.stream = false;
    last.vectors = 1;
    kernel(last);
    if constexpr (outputs) store_tail(step.y, y);
  }

  void run(VjpStep step, Writing writing, bool with_params) const {
    step.stream = writing == Writing::streamed;
    step.vectors = full_;
    const auto kernel = with_params ? vjp_kernel<true>() : vjp_kernel<false>();
    run_full(kernel, step, writing);
    if (tail_ == 0) return;
    Stored x[lanes], grad_y[lanes], grad_x[lanes];
    VjpStep last = from(step, full_);
    last.x = last.after = last.later = tail_of(step.x, x);
    last.grad_y = tail_of(step.grad_y, grad_y);
    last.grad_x = grad_x;
    last.stream = false;
    last.vectors = 1;
    kernel(last);
    store_tail(step.grad_x, grad_x);
  }

  // ---- forward ----

  struct ForwardScratch {
    V* state;   // [vectors, S]
    Stored* x;  // where row_of writes it out
  };

  static Stored* take_row(Scratch& scratch, bool needed, std::int64_t vectors) {
    return scratch.take<Stored>(needed ? vectors * lanes : 0);
  }

  static ForwardScratch take_forward(Scratch& scratch, const ForwardLaunch& launch, std::int64_t vectors) {
    return {scratch.take<V>(vectors * S), take_row(scratch, !is_dense(launch.x), vectors)};
  }

  void run_forward(const ForwardLaunch& launch, const ForwardScratch& scratch) const {
    make_cells();
    for_each_vector([&](const Lane& lane) { load_initial(lane, scratch.state + lane.vector * S); });
    const Writing writing = writing_of(static_cast<Stored*>(launch.spikes), launch.steps);
    for (std::int64_t t = 0; t < launch.steps; ++t) {
      if (launch.checkpoints != nullptr && t > 0 && t % launch.checkpoint_length == 0)
        store_checkpoint(launch, t, scratch.state);
      const Stored* x = row_of(launch.x, t, scratch.x);
      run<true>({.launch = &launch_,
                 .cells = cells_,
                 .x = x,
                 .after = row_after(launch.x, x, t + 1, 0),
                 .before = scratch.state,
                 .state = scratch.state,
                 .y = static_cast<Stored*>(launch.spikes) + t * launch.neurons + begin_},
                writing);
      if (launch.store_states) store_states(launch, t, scratch.state);
    }
    if (!launch.store_states) store_states(launch, 0, scratch.state);
    end_of_stream();
  }

  // Row `row` of a result of so many, from every S-th vector.
  void store_state_row(void* result, std::int64_t rows, std::int64_t row, const V* states) const {
    T* to = static_cast<T*>(result) + row * launch_.neurons + begin_;
    const bool stream = writing_of(static_cast<T*>(result), rows) == Writing::streamed;
    for (std::int64_t v = 0; v < full_; ++v) write(to + v * lanes, states[v * S], stream);
    if (tail_ > 0) store_some(to + full_ * lanes, states[full_ * S], tail_);
  }

  void store_states(const ForwardLaunch& launch, std::int64_t t, const V* states) const {
    const std::int64_t rows = launch.store_states ? launch.steps : 1;
    for (int s = 0; s < S; ++s) store_state_row(launch.states[s], rows, t, states + s);
  }

  void store_checkpoint(const ForwardLaunch& launch, std::int64_t t, const V* states) const {
    const std::int64_t rows = (launch.steps - 1) / launch.checkpoint_length * S;
    for (int s = 0; s < S; ++s) store_state_row(launch.checkpoints, rows, checkpoint_row(t, s), states + s);
  }

  // ---- backward: segments from the last to the first, each recomputed from its checkpoint ----

  struct BackwardScratch {
    V* before;                    // [checkpoint_length, vectors, S], the states before each step of the segment
    V* grad_state;                // [vectors, S]
    V* grad_param;                // [vectors, P]
    Stored *x, *grad_y, *grad_x;  // where row_of writes the first two out, and what nobody wants of the third
  };

  static std::int64_t segment_length(const MultistepLaunch& launch) {
    return launch.checkpoint_length < launch.steps ? launch.checkpoint_length : launch.steps;
  }

  static BackwardScratch take_backward(Scratch& scratch, const BackwardLaunch& launch, std::int64_t vectors) {
    return {scratch.take<V>(segment_length(launch) * vectors * S),
            scratch.take<V>(vectors * S),
            scratch.take<V>(vectors * P),
            take_row(scratch, !is_dense(launch.x), vectors),
            take_row(scratch, !is_dense(launch.grad_spikes), vectors),
            take_row(scratch, launch.grad_x == nullptr, vectors)};
  }

  static bool wants_grad_params(const BackwardLaunch& launch) {
    for (int j = 0; j < P; ++j)
      if (launch.grad_params[j] != nullptr) return true;
    return false;
  }

  void run_backward(const BackwardLaunch& launch, const BackwardScratch& scratch) const {
    make_cells();
    for (std::int64_t i = 0; i < vectors_ * S; ++i) scratch.grad_state[i] = V(0);
    const bool with_params = wants_grad_params(launch);
    if (with_params)
      for (std::int64_t i = 0; i < vectors_ * P; ++i) scratch.grad_param[i] = V(0);
    if (!launch.store_states) add_grad_states(launch, 0, scratch.grad_state);

    const Writing writing = writing_of(static_cast<Stored*>(launch.grad_x), launch.steps);
    const std::int64_t segment = segment_length(launch);
    const std::int64_t last = launch.steps == 0 ? -1 : (launch.steps - 1) / segment * segment;
    for (std::int64_t t0 = last; t0 >= 0; t0 -= segment) {
      const std::int64_t t1 = t0 + segment < launch.steps ? t0 + segment : launch.steps;
      recompute(launch, t0, t1, scratch);
      for (std::int64_t t = t1 - 1; t >= t0; --t) {
        if (launch.store_states) add_grad_states(launch, t, scratch.grad_state);
        const Stored* x = row_of(launch.x, t, scratch.x);
        const Stored* grad_y = row_of(launch.grad_spikes, t, scratch.grad_y);
        Stored* grad_x = launch.grad_x == nullptr ? scratch.grad_x
                                                  : static_cast<Stored*>(launch.grad_x) + t * launch.neurons + begin_;
        run({.launch = &launch_,
             .cells = cells_,
             .x = x,
             .grad_y = grad_y,
             .after = row_after(launch.grad_spikes, grad_y, t - 1, launch.steps - 1),
             .later = row_later(launch.x, x, t, t0, last),
             .before = scratch.before + (t - t0) * vectors_ * S,
             .grad_state = scratch.grad_state,
             .grad_param = scratch.grad_param,
             .grad_x = grad_x},
            writing, with_params);
      }
    }
    store_grad_states(launch, scratch.grad_state);
    if (with_params) store_grad_params(launch, scratch);
    end_of_stream();
  }

  void add_grad_states(const BackwardLaunch& launch, std::int64_t t, V* grad_state) const {
    for (int s = 0; s < S; ++s) {
      const SequenceView& view = launch.grad_states[s];
      if (view.data == nullptr) continue;
      const T* row = tile_at<T>(view, t, view.neuron_stride == 0 ? 0 : begin_);
      for_each_vector([&](const Lane& lane) {
        V& grad = grad_state[lane.vector * S + s];
        grad = grad + (view.neuron_stride == 0 ? V(static_cast<double>(*row))
                                               : load_some(row + lane.vector * lanes, lane.count));
      });
    }
  }

  void recompute(const BackwardLaunch& launch, std::int64_t t0, std::int64_t t1, const BackwardScratch& scratch) const {
    V* before = scratch.before;
    if (t0 == 0) {
      for_each_vector([&](const Lane& lane) { load_initial(lane, before + lane.vector * S); });
    } else {
      for (int s = 0; s < S; ++s) load_state_row(launch.checkpoints, checkpoint_row(t0, s), before + s);
    }
    for (std::int64_t t = t0; t + 1 < t1; ++t) {
      const Stored* x = row_of(launch.x, t, scratch.x);
      run<false>({.launch = &launch_,
                  .cells = cells_,
                  .x = x,
                  .after = row_after(launch.x, x, t + 1, 0),
                  .before = before + (t - t0) * vectors_ * S,
                  .state = before + (t - t0 + 1) * vectors_ * S,
                  .y = nullptr},
                 Writing::cached);
    }
  }

  void store_grad_states(const BackwardLaunch& launch, const V* grad_state) const {
    for (int s = 0; s < S; ++s)
      if (launch.grad_initial[s] != nullptr)
        for_each_vector([&](const Lane& lane) {
          store_either(launch.grad_initial[s], launch.initial[s].type, lane.neuron, grad_state[lane.vector * S + s],
                       lane.count);
        });
  }

  void store_grad_params(const BackwardLaunch& launch, const BackwardScratch& scratch) const {
    for_each_vector([&](const Lane& lane) {
      V* grad_param = scratch.grad_param + lane.vector * P;
      V grad_own[S];  // of the states that the cell made itself
      for (int s = 0; s < S; ++s)
        grad_own[s] = launch.initial[s].data != nullptr ? V(0) : scratch.grad_state[lane.vector * S + s];
      cell(lane).finish(grad_own, grad_param);
      for (int j = 0; j < P; ++j)
        if (launch.grad_params[j])
          store_some(static_cast<T*>(launch.grad_params[j]) + lane.neuron, grad_param[j], lane.count);
    });
  }

 public:
  static std::size_t forward_scratch(const ForwardLaunch& launch, std::int64_t neurons) {
    Scratch scratch(nullptr);
    const Multistep loop(launch, 0, neurons, scratch);
    take_forward(scratch, launch, loop.vectors_);
    return scratch.used();
  }

  static void forward(const ForwardLaunch& launch, std::int64_t begin, std::int64_t end, void* memory) {
    Scratch scratch(memory);
    const Multistep loop(launch, begin, end, scratch);
    loop.run_forward(launch, take_forward(scratch, launch, loop.vectors_));
  }

  static std::size_t backward_scratch(const BackwardLaunch& launch, std::int64_t neurons) {
    Scratch scratch(nullptr);
    const Multistep loop(launch, 0, neurons, scratch);
    take_backward(scratch, launch, loop.vectors_);
    return scratch.used();
  }

  static void backward(const BackwardLaunch& launch, std::int64_t begin, std::int64_t end, void* memory) {
    Scratch scratch(memory);
    const Multistep loop(launch, begin, end, scratch);
    loop.run_backward(launch, take_backward(scratch, launch, loop.vectors_));
  }
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
