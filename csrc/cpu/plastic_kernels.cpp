// Compiled once for each instruction set (CPU_CAPABILITY).
#include <spikeforge/cpu/numbers.h>
#include <spikeforge/cpu/plastic.h>
#include <spikeforge/cpu/scratch.h>
#include <spikeforge/cpu/tape_kernels.h>

#include <algorithm>
#include <cmath>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

// Connections that are taken at once: their rows stay in the first-level cache.
constexpr std::int64_t connections_at_once = 512;

template <class T>
class Piece {
 public:
  Piece(const PlasticCall& call, Scratch& scratch) : call_(call), block_(call.block) {
    connection_ = scratch.take<std::int64_t>(connections_at_once);
    own_ = scratch.take<std::int32_t>(connections_at_once);
    other_ = scratch.take<std::int32_t>(connections_at_once);
    shift_ = scratch.take<std::int64_t>(connections_at_once);
    elapsed_ = scratch.take<std::uint32_t>(connections_at_once);
    states_ = take_rows(scratch, call.states.size());
    if (block_ == nullptr) return;
    const Tape& tape = block_->tape;
    rows_ = scratch.take<Row<T>>(tape.rows());
    kernels_ = scratch.take<Kernel<T>>(tape.instructions.size());
    T* const constants = scratch.take<T>((tape.constants.size() + block_->hoisted + block_->signals) * granule);
    T* const traces = take_rows(scratch, block_->traces);
    T* const signals = take_rows(scratch, block_->signals);
    T* const results = take_rows(scratch, tape.results);
    T* const temporaries = take_rows(scratch, tape.temporaries);
    if (scratch.counts_only()) return;
    for (std::size_t i = 0; i < tape.instructions.size(); ++i) kernels_[i] = kernel_of<T>(tape.instructions[i]);
    std::size_t argument = 0;
    for (std::size_t i = 0; i < block_->states; ++i) rows_[argument++] = row_of(states_, i);
    for (std::size_t i = 0; i < block_->traces; ++i) rows_[argument++] = row_of(traces, i);
    T* uniform = constants;
    const auto bind_uniform = [&](Row<T>& row, at::vec::Vectorized<T> value) {
      for (std::int64_t k = 0; k < granule; k += value.size()) value.store(uniform + k);
      row = {uniform, 0};
      uniform += granule;
    };
    for (const double number : call.numbers)
      bind_uniform(rows_[argument++], at::vec::Vectorized<T>(static_cast<T>(number)));
    for (std::size_t i = 0; i < block_->signals; ++i) {
      const PlasticSignal& signal = call.signals[i];
      if (signal.data != nullptr && signal.of_columns) {
        rows_[argument++] = row_of(signals, i);
        continue;
      }
      const T number = signal.data == nullptr ? T(0) : *static_cast<const T*>(signal.data);
      bind_uniform(rows_[argument++], at::vec::Vectorized<T>(number));
    }
    for (std::size_t i = 0; i < tape.results; ++i) rows_[tape.result(i)] = row_of(results, i);
    for (std::size_t i = 0; i < tape.constants.size(); ++i) {
      const Constant& constant = tape.constants[i];
      bind_uniform(rows_[tape.constant(i)], constant.is_truth ? Operations<T>::mask(constant.number != 0)
                                                              : at::vec::Vectorized<T>(static_cast<T>(constant.number)));
    }
    for (std::size_t i = 0; i < tape.temporaries; ++i) rows_[tape.temporary(i)] = row_of(temporaries, i);
  }

  void connections(const PlasticWalk& walk) {
    by_columns_ = walk.by_columns;
    std::int64_t filled = 0;
    for (std::int64_t i = 0; i < walk.count; ++i) {
      for (std::int64_t place = walk.begins[i]; place < walk.ends[i];) {
        const std::int64_t count = std::min(connections_at_once - filled, walk.ends[i] - place);
        for (std::int64_t k = 0; k < count; ++k) {
          own_[filled + k] = walk.own[i];
          other_[filled + k] = walk.others[place + k];
          connection_[filled + k] = walk.slots == nullptr ? place + k : walk.slots[place + k];
        }
        filled += count;
        place += count;
        if (filled == connections_at_once) {
          run_connections(filled);
          filled = 0;
        }
      }
    }
    if (filled > 0) run_connections(filled);
  }

  void neurons(const std::int32_t* fired, std::int64_t count) {
    for (std::int64_t first = 0; first < count; first += connections_at_once) {
      const std::int64_t n = std::min(connections_at_once, count - first);
      std::copy_n(fired + first, n, own_);
      for (std::size_t i = 0; i < block_->traces; ++i)
        if (reads(block_->states + i)) gather(trace_data(i), own_, rows_[block_->states + i].data, n);
      run_tape<T>(block_->tape, kernels_, rows_, padded(n));
      for (std::size_t k = 0; k < block_->changed.size(); ++k) {
        const T* const from = rows_[block_->tape.result(k)].data;
        T* const to = trace_data(block_->changed[k]);
        for (std::int64_t i = 0; i < n; ++i) to[own_[i]] = from[i];
      }
    }
  }

 private:
  static std::int64_t padded(std::int64_t n) { return (n + granule - 1) / granule * granule; }
  static T* take_rows(Scratch& scratch, std::size_t n) { return scratch.take<T>(n * connections_at_once); }
  static Row<T> row_of(T* rows, std::size_t i) { return {rows + i * connections_at_once, 1}; }

  bool reads(std::size_t argument) const { return block_->reads[argument]; }
  T* trace_data(std::size_t i) const { return static_cast<T*>(call_.traces[i].data); }

  static void gather(const T* from, const std::int32_t* places, T* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[places[i]];
  }

  void run_connections(std::int64_t n) {
    gather_states(n);
    if (block_ != nullptr) {
      gather_traces(n);
      gather_signals(n);
      run_tape<T>(block_->tape, kernels_, rows_, padded(n));
    }
    scatter_states(n);
    if (block_ != nullptr && block_->sends && call_.sent != nullptr) {
      T* const sent = static_cast<T*>(call_.sent);
      const T* const from = rows_[block_->tape.result(block_->changed.size())].data;
      const std::int32_t* const columns = by_columns_ ? own_ : other_;
      for (std::int64_t i = 0; i < n; ++i) sent[columns[i]] += from[i];
    }
  }

  // Decaying states are brought up to this step, all of them: they share the step that they are of.
  void gather_states(std::int64_t n) {
    if (call_.last != nullptr)
      for (std::int64_t i = 0; i < n; ++i) elapsed_[i] = call_.now - call_.last[connection_[i]];
    for (std::size_t s = 0; s < call_.states.size(); ++s) {
      const PlasticState& state = call_.states[s];
      if (!state.decays && !(block_ != nullptr && reads(s))) continue;
      T* const to = row_of(states_, s).data;
      with_memory(state, [&](const auto* from) {
        for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[connection_[i]]);
      });
      if (state.decays) decay(state, to, n);
    }
  }

  void decay(const PlasticState& state, T* values, std::int64_t n) const {
    const T* const factors = static_cast<const T*>(state.factors);
    const T target = static_cast<T>(state.target);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t steps = elapsed_[i];
      if (steps == 0) continue;
      const T factor =
          steps < plastic_factors ? factors[steps] : static_cast<T>(std::exp(state.log_factor * double(steps)));
      values[i] = target + (values[i] - target) * factor;
    }
  }

  void gather_traces(std::int64_t n) {
    bool shifts = false;
    for (std::size_t i = 0; i < block_->traces; ++i) {
      if (!reads(block_->states + i)) continue;
      T* const to = rows_[block_->states + i].data;
      const bool after = call_.traces[i].after;
      const std::int32_t* const places = after == by_columns_ ? own_ : other_;
      const T* const from = trace_data(i);
      if (after || call_.trace_offsets == nullptr) {
        gather(from, places, to, n);
        continue;
      }
      if (!shifts) find_shifts(n);
      shifts = true;
      for (std::int64_t k = 0; k < n; ++k) to[k] = from[shift_[k] + places[k]];
    }
  }

  void find_shifts(std::int64_t n) {
    const auto find = [&](const auto* delays) {
      for (std::int64_t k = 0; k < n; ++k) shift_[k] = call_.trace_offsets[delays[connection_[k]]];
    };
    if (call_.wide_delays)
      find(static_cast<const std::int32_t*>(call_.delays));
    else
      find(static_cast<const std::uint8_t*>(call_.delays));
  }

  void gather_signals(std::int64_t n) {
    const std::size_t first = block_->states + block_->traces + block_->hoisted;
    for (std::size_t i = 0; i < block_->signals; ++i) {
      const PlasticSignal& signal = call_.signals[i];
      if (signal.data == nullptr || !signal.of_columns || !reads(first + i)) continue;
      gather(static_cast<const T*>(signal.data), by_columns_ ? own_ : other_, rows_[first + i].data, n);
    }
  }

  void scatter_states(std::int64_t n) {
    for (std::size_t s = 0; s < call_.states.size(); ++s) {
      const PlasticState& state = call_.states[s];
      const T* from = state.decays ? row_of(states_, s).data : nullptr;
      if (block_ != nullptr)
        for (std::size_t k = 0; k < block_->changed.size(); ++k)
          if (block_->changed[k] == s) from = rows_[block_->tape.result(k)].data;
      if (from == nullptr) continue;
      with_memory(state, [&](auto* to) {
        using Stored = std::remove_pointer_t<decltype(to)>;
        for (std::int64_t i = 0; i < n; ++i) to[connection_[i]] = static_cast<Stored>(from[i]);
      });
    }
    if (call_.last != nullptr)
      for (std::int64_t i = 0; i < n; ++i) call_.last[connection_[i]] = call_.now;
  }

  template <class Function>
  static void with_memory(const PlasticState& state, Function&& function) {
    switch (state.type) {
      case DType::f16:
        return function(static_cast<c10::Half*>(state.data));
      case DType::bf16:
        return function(static_cast<c10::BFloat16*>(state.data));
      case DType::f32:
        return function(static_cast<float*>(state.data));
      default:
        return function(static_cast<double*>(state.data));
    }
  }

  const PlasticCall& call_;
  const PlasticBlock* const block_;
  bool by_columns_ = false;
  std::int64_t *connection_, *shift_;
  std::int32_t *own_, *other_;
  std::uint32_t* elapsed_;
  T* states_;
  Row<T>* rows_ = nullptr;
  Kernel<T>* kernels_ = nullptr;
};

template <class Function>
void with_type(DType type, Function&& function) {
  if (type == DType::f64)
    function(double{});
  else
    function(float{});
}

std::size_t scratch_bytes(const PlasticCall& call) {
  Scratch scratch(nullptr);
  with_type(call.type, [&](auto number) { Piece<decltype(number)>(call, scratch); });
  return scratch.used();
}

void connections(const PlasticCall& call, const PlasticWalk& walk, void* memory) {
  with_type(call.type, [&](auto number) {
    Scratch scratch(memory);
    Piece<decltype(number)>(call, scratch).connections(walk);
  });
}

void neurons(const PlasticCall& call, const std::int32_t* fired, std::int64_t count, void* memory) {
  with_type(call.type, [&](auto number) {
    Scratch scratch(memory);
    Piece<decltype(number)>(call, scratch).neurons(fired, count);
  });
}

void decay(DType type, void* values, std::int64_t count, double factor, double target) {
  with_type(type, [&](auto number) {
    using T = decltype(number);
    T* const all = static_cast<T*>(values);
    const T f = static_cast<T>(factor), to = static_cast<T>(target);
    for (std::int64_t i = 0; i < count; ++i) all[i] = to + (all[i] - to) * f;
  });
}

constexpr PlasticKernels kernels{scratch_bytes, connections, neurons, decay};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const PlasticKernels& plastic_kernels_avx512() { return kernels; }
#elif defined(CPU_CAPABILITY_AVX2)
const PlasticKernels& plastic_kernels_avx2() { return kernels; }
#else
const PlasticKernels& plastic_kernels_default() { return kernels; }
#endif

}  // namespace spikeforge::cpu
