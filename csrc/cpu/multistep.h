// The multistep loop on the CPU: the one loop over T that runs a cell, forward and backward, over a tile of neurons
// whose states stay in the cache. It knows rows, tiles and checkpoints, and nothing of any neuron.
//
// Rows run along N, so that every access is a contiguous stream; the time loop is outside the loop over the tile's
// vectors.
#pragma once

#include <spikeforge/cpu/any_surrogate.h>
#include <spikeforge/cpu/vec.h>
#include <spikeforge/neuron/cell.h>
#include <spikeforge/runtime/launch.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

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

template <class T>
T load_one(const void* data, DType type, std::int64_t i) {
  switch (type) {
    case DType::f16:
      return static_cast<T>(static_cast<float>(static_cast<const c10::Half*>(data)[i]));
    case DType::bf16:
      return static_cast<T>(static_cast<float>(static_cast<const c10::BFloat16*>(data)[i]));
    case DType::f32:
      return static_cast<T>(static_cast<const float*>(data)[i]);
    default:
      return static_cast<T>(static_cast<const double*>(data)[i]);
  }
}

template <class T>
void store_one(void* data, DType type, std::int64_t i, T value) {
  switch (type) {
    case DType::f16:
      static_cast<c10::Half*>(data)[i] = static_cast<float>(value);
      return;
    case DType::bf16:
      static_cast<c10::BFloat16*>(data)[i] = static_cast<float>(value);
      return;
    case DType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    default:
      static_cast<double*>(data)[i] = static_cast<double>(value);
      return;
  }
}

template <class Cell, class T, class Stored>
class Multistep {
  using V = Vec<T>;
  static constexpr int lanes = V::lanes;
  static constexpr int S = Cell::n_states;
  static constexpr int P = Cell::n_params;

  // A vector of neurons within the tile: which it is, and how many of its lanes are neurons.
  struct Lane {
    std::int64_t vector, neuron;
    int count;
  };

  const MultistepLaunch& launch_;
  const std::int64_t begin_, end_, vectors_;
  // Without tensor parameters all neurons share one cell.
  std::int64_t cell_stride_;
  Cell* cells_;

  Multistep(const MultistepLaunch& launch, std::int64_t begin, std::int64_t end, Scratch& scratch)
      : launch_(launch), begin_(begin), end_(end), vectors_((end - begin + lanes - 1) / lanes), cell_stride_(0) {
    for (int j = 0; j < P; ++j)
      if (launch.params[j].data != nullptr) cell_stride_ = 1;
    cells_ = scratch.take<Cell>(cell_stride_ == 0 ? 1 : vectors_);
  }

  template <class Body>
  void for_each_vector(Body&& body) const {
    const std::int64_t full = (end_ - begin_) / lanes;
    for (std::int64_t v = 0; v < full; ++v) body(Lane{v, begin_ + v * lanes, lanes});
    if (full < vectors_) body(Lane{full, begin_ + full * lanes, static_cast<int>(end_ - begin_ - full * lanes)});
  }

  const Cell& cell(const Lane& lane) const { return cells_[lane.vector * cell_stride_]; }

  V load_param(const ParamView& param, const Lane& lane) const {
    if (param.data == nullptr) return V(param.number);
    T values[lanes];
    for (int k = 0; k < lanes; ++k) {
      const std::int64_t neuron = lane.neuron + (k < lane.count ? k : 0);
      values[k] = load_one<T>(param.data, param.type, (neuron / param.inner) % param.count);
    }
    return at::vec::Vectorized<T>::loadu(values);
  }

  void make_cells() const {
    const AnySurrogate<V> surrogate(launch_.surrogate, launch_.surrogate_args.data());
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
      if (given.data == nullptr) continue;
      T values[lanes] = {};
      for (int k = 0; k < lane.count; ++k) values[k] = load_one<T>(given.data, given.type, lane.neuron + k);
      state[s] = at::vec::Vectorized<T>::loadu(values);
    }
  }

  V load_view(const SequenceView& view, std::int64_t t, const Lane& lane) const {
    const Stored* row = static_cast<const Stored*>(view.data) + t * view.time_stride;
    if (view.neuron_stride == 0) return V(static_cast<double>(static_cast<T>(*row)));
    return load_row<T>(row + lane.neuron, lane.count);
  }

  V load_grad_state(const SequenceView& view, std::int64_t t, const Lane& lane) const {
    const T* row = static_cast<const T*>(view.data) + t * view.time_stride;
    if (view.neuron_stride == 0) return V(static_cast<double>(*row));
    return load_row<T>(row + lane.neuron, lane.count);
  }

  T* checkpoint_row(const void* checkpoints, std::int64_t t, int s) const {
    return static_cast<T*>(const_cast<void*>(checkpoints)) +
           ((t / launch_.checkpoint_length - 1) * S + s) * launch_.neurons;
  }

  // ---- forward ----

  struct ForwardScratch {
    V* state;  // [vectors, S]
  };

  static ForwardScratch take_forward(Scratch& scratch, std::int64_t vectors) { return {scratch.take<V>(vectors * S)}; }

  static void store_states(void* const* targets, std::int64_t offset, const Lane& lane, const V* state) {
    for (int s = 0; s < S; ++s) store_row<T>(static_cast<T*>(targets[s]) + offset + lane.neuron, state[s], lane.count);
  }

  void run_forward(const ForwardLaunch& launch, const ForwardScratch& scratch) const {
    make_cells();
    for_each_vector([&](const Lane& lane) { load_initial(lane, scratch.state + lane.vector * S); });
    for (std::int64_t t = 0; t < launch.steps; ++t) {
      if (launch.checkpoints != nullptr && t > 0 && t % launch.checkpoint_length == 0)
        store_checkpoint(launch, t, scratch.state);
      step(launch, t, scratch.state);
    }
    if (!launch.store_states)
      for_each_vector(
          [&](const Lane& lane) { store_states(launch.states.data(), 0, lane, scratch.state + lane.vector * S); });
  }

  void store_checkpoint(const ForwardLaunch& launch, std::int64_t t, const V* states) const {
    void* rows[S];
    for (int s = 0; s < S; ++s) rows[s] = checkpoint_row(launch.checkpoints, t, s);
    for_each_vector([&](const Lane& lane) { store_states(rows, 0, lane, states + lane.vector * S); });
  }

  void step(const ForwardLaunch& launch, std::int64_t t, V* states) const {
    const std::int64_t offset = t * launch.neurons;
    Stored* spikes = static_cast<Stored*>(launch.spikes) + offset;
    for_each_vector([&](const Lane& lane) {
      V* state = states + lane.vector * S;
      const V x = load_view(launch.x, t, lane);
      V y;
      cell(lane).step(&x, state, &y);
      store_row<T>(spikes + lane.neuron, y, lane.count);
      if (launch.store_states) store_states(launch.states.data(), offset, lane, state);
    });
  }

  // ---- backward: segments from the last to the first, each recomputed from its checkpoint ----

  struct BackwardScratch {
    V* before;      // [checkpoint_length, vectors, S], the states before each step of the segment
    V* grad_state;  // [vectors, S]
    V* grad_param;  // [vectors, P]
  };

  static std::int64_t segment_length(const MultistepLaunch& launch) {
    return launch.checkpoint_length < launch.steps ? launch.checkpoint_length : launch.steps;
  }

  static BackwardScratch take_backward(Scratch& scratch, const MultistepLaunch& launch, std::int64_t vectors) {
    return {scratch.take<V>(segment_length(launch) * vectors * S), scratch.take<V>(vectors * S),
            scratch.take<V>(vectors * P)};
  }

  static bool wants_grad_params(const BackwardLaunch& launch) {
    for (int j = 0; j < P; ++j)
      if (launch.grad_params[j] != nullptr) return true;
    return false;
  }

  void run_backward(const BackwardLaunch& launch, const BackwardScratch& scratch) const {
    make_cells();
    for (std::int64_t i = 0; i < vectors_ * S; ++i) scratch.grad_state[i] = V(0);
    for (std::int64_t i = 0; i < vectors_ * P; ++i) scratch.grad_param[i] = V(0);
    if (!launch.store_states)
      for_each_vector(
          [&](const Lane& lane) { add_grad_states(launch, 0, lane, scratch.grad_state + lane.vector * S); });

    const bool with_params = wants_grad_params(launch);
    const std::int64_t segment = segment_length(launch);
    const std::int64_t last = launch.steps == 0 ? -1 : (launch.steps - 1) / segment * segment;
    for (std::int64_t t0 = last; t0 >= 0; t0 -= segment) {
      const std::int64_t t1 = t0 + segment < launch.steps ? t0 + segment : launch.steps;
      recompute(launch, t0, t1, scratch.before);
      for (std::int64_t t = t1 - 1; t >= t0; --t) {
        const V* before = scratch.before + (t - t0) * vectors_ * S;
        with_params ? vjp<true>(launch, t, before, scratch) : vjp<false>(launch, t, before, scratch);
      }
    }
    store_grads(launch, scratch);
  }

  void add_grad_states(const BackwardLaunch& launch, std::int64_t t, const Lane& lane, V* grad_state) const {
    for (int s = 0; s < S; ++s)
      if (launch.grad_states[s].data != nullptr)
        grad_state[s] = grad_state[s] + load_grad_state(launch.grad_states[s], t, lane);
  }

  void recompute(const BackwardLaunch& launch, std::int64_t t0, std::int64_t t1, V* before) const {
    for_each_vector([&](const Lane& lane) {
      V* state = before + lane.vector * S;
      load_initial(lane, state);
      if (t0 > 0)
        for (int s = 0; s < S; ++s)
          state[s] = load_row<T>(checkpoint_row(launch.checkpoints, t0, s) + lane.neuron, lane.count);
    });
    for (std::int64_t t = t0; t + 1 < t1; ++t) {
      const V* now = before + (t - t0) * vectors_ * S;
      V* then = before + (t - t0 + 1) * vectors_ * S;
      for_each_vector([&](const Lane& lane) {
        V state[S];
        for (int s = 0; s < S; ++s) state[s] = now[lane.vector * S + s];
        const V x = load_view(launch.x, t, lane);
        V y;
        cell(lane).step(&x, state, &y);
        for (int s = 0; s < S; ++s) then[lane.vector * S + s] = state[s];
      });
    }
  }

  template <bool WithParams>
  void vjp(const BackwardLaunch& launch, std::int64_t t, const V* before, const BackwardScratch& scratch) const {
    Stored* grad_x = launch.grad_x ? static_cast<Stored*>(launch.grad_x) + t * launch.neurons : nullptr;
    for_each_vector([&](const Lane& lane) {
      V* grad_state = scratch.grad_state + lane.vector * S;
      V ignored[P] = {};
      V* grad_param = WithParams ? scratch.grad_param + lane.vector * P : ignored;
      if (launch.store_states) add_grad_states(launch, t, lane, grad_state);
      const V x = load_view(launch.x, t, lane);
      const V grad_y = launch.grad_spikes.data ? load_view(launch.grad_spikes, t, lane) : V(0);
      V grad_in;
      cell(lane).vjp(&x, before + lane.vector * S, &grad_y, grad_state, &grad_in, grad_param);
      if (grad_x) store_row<T>(grad_x + lane.neuron, grad_in, lane.count);
    });
  }

  void store_grads(const BackwardLaunch& launch, const BackwardScratch& scratch) const {
    for_each_vector([&](const Lane& lane) {
      const V* grad_state = scratch.grad_state + lane.vector * S;
      V* grad_param = scratch.grad_param + lane.vector * P;
      V grad_own[S];  // of the states that the cell made itself
      for (int s = 0; s < S; ++s) {
        const bool given = launch.initial[s].data != nullptr;
        grad_own[s] = given ? V(0) : grad_state[s];
        if (launch.grad_initial[s] == nullptr) continue;
        T values[lanes];
        grad_state[s].value.store(values);
        for (int k = 0; k < lane.count; ++k)
          store_one<T>(launch.grad_initial[s], launch.initial[s].type, lane.neuron + k, values[k]);
      }
      cell(lane).finish(grad_own, grad_param);
      for (int j = 0; j < P; ++j)
        if (launch.grad_params[j])
          store_row<T>(static_cast<T*>(launch.grad_params[j]) + lane.neuron, grad_param[j], lane.count);
    });
  }

 public:
  static std::size_t forward_scratch(const ForwardLaunch& launch, std::int64_t neurons) {
    Scratch scratch(nullptr);
    const Multistep loop(launch, 0, neurons, scratch);
    take_forward(scratch, loop.vectors_);
    return scratch.used();
  }

  static void forward(const ForwardLaunch& launch, std::int64_t begin, std::int64_t end, void* memory) {
    Scratch scratch(memory);
    const Multistep loop(launch, begin, end, scratch);
    loop.run_forward(launch, take_forward(scratch, loop.vectors_));
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
