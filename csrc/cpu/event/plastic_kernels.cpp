// Compiled once for each instruction set (CPU_CAPABILITY).
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/event/plastic.h"
#include "csrc/cpu/multistep/tape_kernels.h"
#include "csrc/cpu/numbers.h"
#include "csrc/cpu/scratch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

// The maximum number of connections of a piece, whose rows stay in the first-level cache.
constexpr std::int64_t connections_at_once = 512;
// A row with at least this number of connections has separate pieces; shorter rows share a piece.
constexpr std::int64_t least_in_place = 96;
constexpr std::int64_t line = 64;  // bytes of a cache line

template <class T> class Piece {
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
    for (std::size_t i = 0; i < tape.constants.size(); ++i)
      bind_uniform(rows_[tape.constant(i)], vector_of<T>(tape.constants[i]));
    for (std::size_t i = 0; i < tape.temporaries; ++i) rows_[tape.temporary(i)] = row_of(temporaries, i);
  }

  // Processes the connections of a walk: long rows in place, and short rows collected into one piece.
  void connections(const PlasticWalk& walk) {
    by_columns_ = walk.by_columns;
    const bool sums = block_ != nullptr && block_->sends && call_.sent != nullptr;
    std::int64_t filled = 0;
    const auto flush = [&] {
      if (filled > 0) run_filled(std::exchange(filled, 0));
    };
    for (std::int64_t i = 0; i < walk.count; ++i) {
      std::int64_t place = walk.begins[i];
      const std::int64_t end = walk.ends[i];
      if (end - place >= least_in_place) {
        if (sums) flush();  // keeps the order of the walk
        const std::int64_t pieces = (end - place + connections_at_once - 1) / connections_at_once;
        for (const std::int64_t each = (end - place + pieces - 1) / pieces; place < end; place += taken_.count) {
          taken_ = {.count = std::min(each, end - place),
                    .first = place,
                    .list = walk.slots == nullptr ? nullptr : walk.slots + place,
                    .same_own = true,
                    .own = walk.own + i,
                    .other = walk.others + place};
          look_ahead(walk, i, place + taken_.count);
          run_connections();
        }
      }
      while (place < end) {
        const std::int64_t count = std::min(connections_at_once - filled, end - place);
        std::fill_n(own_ + filled, count, walk.own[i]);
        std::copy_n(walk.others + place, count, other_ + filled);
        if (walk.slots == nullptr)
          std::iota(connection_ + filled, connection_ + filled + count, place);
        else
          std::copy_n(walk.slots + place, count, connection_ + filled);
        filled += count;
        place += count;
        if (filled == connections_at_once) flush();
      }
    }
    flush();
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

  // Prefetches scattered data while a piece is computed: the states of the next piece, and the indices of the one after
  // it.
  [[gnu::always_inline]] void look_ahead(const PlasticWalk& walk, std::int64_t segment, std::int64_t place) const {
    const auto piece = [&] {
      if (segment < walk.count && place == walk.ends[segment] && ++segment < walk.count) place = walk.begins[segment];
      return segment < walk.count ? std::min(connections_at_once, walk.ends[segment] - place) : 0;
    };
    std::int64_t n = piece();
    if (n == 0) return;
    for (std::size_t s = 0; s < call_.states.size(); ++s) {
      const PlasticState& state = call_.states[s];
      if (!state.decays && !(block_ != nullptr && reads(s))) continue;
      ask_for(state.data, static_cast<std::int64_t>(size_of(state.type)), walk.slots, place, n);
    }
    if (call_.last != nullptr) ask_for(call_.last, sizeof *call_.last, walk.slots, place, n);
    place += n;
    n = piece();
    if (n == 0) return;
    ask_for(walk.others, sizeof *walk.others, nullptr, place, n);
    if (walk.slots != nullptr) ask_for(walk.slots, sizeof *walk.slots, nullptr, place, n);
  }

  // Prefetches elements place, ..., place + n - 1, or the elements at these places of `slots`. GCC regards a function
  // that only prefetches as free of effects, and removes its calls, so it must be inlined.
  [[gnu::always_inline]] static void ask_for(const void* data, std::int64_t bytes, const std::int64_t* slots,
                                             std::int64_t place, std::int64_t n) {
    constexpr int to_second_level = 2;
    const char* const from = static_cast<const char*>(data);
    if (slots != nullptr) {
      for (std::int64_t i = place; i < place + n; ++i) __builtin_prefetch(from + slots[i] * bytes, 0, to_second_level);
    } else {
      for (std::int64_t at = place * bytes; at < (place + n) * bytes; at += line)
        __builtin_prefetch(from + at, 0, to_second_level);
    }
  }

  void run_filled(std::int64_t count) {
    taken_ = {.count = count, .first = 0, .list = connection_, .same_own = false, .own = own_, .other = other_};
    run_connections();
  }

  void run_connections() {
    const std::int64_t n = taken_.count;
    gather_states();
    if (block_ != nullptr) {
      gather_traces();
      gather_signals();
      run_tape<T>(block_->tape, kernels_, rows_, padded(n));
    }
    scatter_states();
    if (block_ == nullptr || !block_->sends || call_.sent == nullptr) return;
    T* const sent = static_cast<T*>(call_.sent);
    const T* const from = rows_[block_->tape.result(block_->changed.size())].data;
    for (std::int64_t i = 0; i < n; ++i) sent[taken_.other[i]] += from[i];
  }

  // Calls f with a function that returns the index of connection i.
  template <class Function> void with_numbers(Function&& function) const {
    if (taken_.list == nullptr)
      function([first = taken_.first](std::int64_t i) { return first + i; });
    else
      function([list = taken_.list](std::int64_t i) { return list[i]; });
  }

  // Gathers one value per connection from the neurons on the own side, or on the other side.
  void gather_neurons(const T* from, bool own, T* to) const {
    if (own && taken_.same_own)
      std::fill_n(to, taken_.count, from[*taken_.own]);
    else
      gather(from, own ? taken_.own : taken_.other, to, taken_.count);
  }

  // Gathers the states. All decaying states are updated to this step, since they share the step of their last update.
  void gather_states() {
    const std::int64_t n = taken_.count;
    with_numbers([&](const auto& number) {
      if (call_.last != nullptr)
        for (std::int64_t i = 0; i < n; ++i) elapsed_[i] = call_.now - call_.last[number(i)];
      for (std::size_t s = 0; s < call_.states.size(); ++s) {
        const PlasticState& state = call_.states[s];
        if (!state.decays && !(block_ != nullptr && reads(s))) continue;
        T* const to = row_of(states_, s).data;
        with_memory(state, [&](const auto* from) {
          for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[number(i)]);
        });
        if (state.decays) decay(state, to, n);
      }
    });
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

  void gather_traces() {
    bool shifts = false;
    for (std::size_t i = 0; i < block_->traces; ++i) {
      if (!reads(block_->states + i)) continue;
      T* const to = rows_[block_->states + i].data;
      const bool after = call_.traces[i].after, own = after == by_columns_;
      const T* const from = trace_data(i);
      if (after || call_.trace_offsets == nullptr) {
        gather_neurons(from, own, to);
        continue;
      }
      if (!shifts) find_shifts();
      shifts = true;
      const std::int32_t* const neurons = own ? taken_.own : taken_.other;
      for (std::int64_t k = 0; k < taken_.count; ++k) to[k] = from[shift_[k] + neurons[own && taken_.same_own ? 0 : k]];
    }
  }

  void find_shifts() {
    with_numbers([&](const auto& number) {
      const auto find = [&](const auto* delays) {
        for (std::int64_t k = 0; k < taken_.count; ++k) shift_[k] = call_.trace_offsets[delays[number(k)]];
      };
      if (call_.wide_delays)
        find(static_cast<const std::int32_t*>(call_.delays));
      else
        find(static_cast<const std::uint8_t*>(call_.delays));
    });
  }

  void gather_signals() {
    const std::size_t first = block_->states + block_->traces + block_->hoisted;
    for (std::size_t i = 0; i < block_->signals; ++i) {
      const PlasticSignal& signal = call_.signals[i];
      if (signal.data == nullptr || !signal.of_columns || !reads(first + i)) continue;
      gather_neurons(static_cast<const T*>(signal.data), by_columns_, rows_[first + i].data);
    }
  }

  void scatter_states() {
    const std::int64_t n = taken_.count;
    with_numbers([&](const auto& number) {
      for (std::size_t s = 0; s < call_.states.size(); ++s) {
        const PlasticState& state = call_.states[s];
        const T* from = state.decays ? row_of(states_, s).data : nullptr;
        if (block_ != nullptr)
          for (std::size_t k = 0; k < block_->changed.size(); ++k)
            if (block_->changed[k] == s) from = rows_[block_->tape.result(k)].data;
        if (from == nullptr) continue;
        with_memory(state, [&](auto* to) {
          using Stored = std::remove_pointer_t<decltype(to)>;
          for (std::int64_t i = 0; i < n; ++i) to[number(i)] = static_cast<Stored>(from[i]);
        });
      }
      if (call_.last != nullptr)
        for (std::int64_t i = 0; i < n; ++i) call_.last[number(i)] = call_.now;
    });
  }

  template <class Function> static void with_memory(const PlasticState& state, Function&& function) {
    with_element(state.type, [&](auto stored) { function(static_cast<decltype(stored)*>(state.data)); });
  }

  // The connections of a piece.
  struct Taken {
    std::int64_t count = 0;
    std::int64_t first = 0;              // their indices are first, first + 1, ...
    const std::int64_t* list = nullptr;  // or these
    bool same_own = false;               // true if own is one neuron
    const std::int32_t *own = nullptr, *other = nullptr;
  };

  const PlasticCall& call_;
  const PlasticBlock* const block_;
  Taken taken_;
  bool by_columns_ = false;
  std::int64_t *connection_, *shift_;
  std::int32_t *own_, *other_;
  std::uint32_t* elapsed_;
  T* states_;
  Row<T>* rows_ = nullptr;
  Kernel<T>* kernels_ = nullptr;
};

std::size_t scratch_bytes(const PlasticCall& call) {
  Scratch scratch(nullptr);
  with_arithmetic(call.type, [&](auto number) { Piece<decltype(number)>(call, scratch); });
  return scratch.used();
}

void connections(const PlasticCall& call, const PlasticWalk& walk, void* memory) {
  with_arithmetic(call.type, [&](auto number) {
    Scratch scratch(memory);
    Piece<decltype(number)>(call, scratch).connections(walk);
  });
}

void neurons(const PlasticCall& call, const std::int32_t* fired, std::int64_t count, void* memory) {
  with_arithmetic(call.type, [&](auto number) {
    Scratch scratch(memory);
    Piece<decltype(number)>(call, scratch).neurons(fired, count);
  });
}

void decay(DType type, void* values, std::int64_t count, double factor, double target) {
  with_arithmetic(type, [&](auto number) {
    using T = decltype(number);
    T* const all = static_cast<T*>(values);
    const T f = static_cast<T>(factor), to = static_cast<T>(target);
    for (std::int64_t i = 0; i < count; ++i) all[i] = to + (all[i] - to) * f;
  });
}

constexpr PlasticKernels kernels{scratch_bytes, connections, neurons, decay};

}  // namespace
}  // namespace CPU_CAPABILITY

const PlasticKernels& SPIKEFORGE_OF_SET(plastic_kernels)() { return kernels; }

}  // namespace spikeforge::cpu
