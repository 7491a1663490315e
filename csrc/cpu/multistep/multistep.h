// The multistep loop on the CPU: the only loop over T, which runs a cell, forward and backward, on a tile of neurons
// whose states stay in the cache. It handles rows, tiles, segments and checkpoints, and does not depend on any cell.
//
// Rows run along N, so that every access is a contiguous stream; the time loop is outside the loop over the tile's
// vectors. The computation of a row is a parameter:
//
//   Rows::Number, Rows::Stored     the type of the arithmetic and of the states; that of inputs and outputs
//   Rows::in_place                 true if the states after a step may replace those before it
//   Rows(tile, context, scratch)
//   is_legal()                     true if the tile's parameters are legal, once loaded; if not, nothing is computed
//   take_forward(launch), take_backward(launch)   memory, and values that do not change over the steps
//   initial(states)                the initial states of the cell
//   step(launch, t, ranges, before, after)   for the neurons in `ranges`, as all below; others may be computed too
//   advance(launch, t, ranges, before, after)   only the states
//   vjp(launch, t, ranges, segment, before, grad, grad_before)
//                                  `grad` is the gradient of the states after the step, grad_before that of `before`
//   forget(first, last)            clears the sums of parameters' gradients of these neurons of the tile
//   finish(launch, grad)           gradients of parameters; `grad` is the gradient of the cell's initial states
//
// States are contiguous rows of `tile.padded` numbers, one row per state.
//
// A tile ends with its longest sample. If its samples differ in length, a step covers the ranges of neurons that have
// this step. Other neurons in the same granule are computed too, without effect: results after a sample's end are set
// to zero, its last states are stored separately, and in the backward pass its gradients are inserted at its last step,
// where its sums begin.
//
// The loop is bound by memory. Hence results that would not fit the caches are written past them, and each row
// prefetches the next: the hardware prefetcher restarts with every row. LIF, float32, T=16, N=2^20 on one Zen 4 core,
// forward in GB/s of x and spikes for tiles of 512, 1024, 2048, 4096, 16384, where a copy reaches 24, and a copy past
// the caches 36: plain 13, 14, 14, 16, 17; past the caches 17, 18, 17, 22, 24; and with prefetch of the next row 24,
// 28, 29, 34, 30. A segment of the backward pass is recomputed at the pace of memory and run backward at that of
// arithmetic: hence its vjps prefetch the inputs of the next segment as well. LIF with the sigmoid surrogate, float32,
// T=16, N=2^20, ns for 16 neurons and a step: 11.8 without, 9.1 with them, 8.3 with all data in the cache.
#pragma once

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/layer/spike_bits.h"
#include "csrc/cpu/numbers.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tile.h"
#include "csrc/kernels/multistep/launch.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// The samples of contiguous neurons: their lengths, and the steps at which they restart.
class TileSamples {
 public:
  TileSamples(const Launch& launch, std::int64_t begin, std::int64_t end, Scratch& scratch)
      : lengths_(launch.lengths),
        start_(launch.start),
        steps_(launch.steps),
        begin_(begin),
        end_(end),
        all_{0, (end - begin + granule - 1) / granule * granule},
        longest_(launch.steps),
        shortest_(launch.steps) {
    if (!have_lengths() || begin == end) return;
    const auto most_runs = static_cast<std::size_t>((end - begin) / lengths_.inner + 2);
    present_ = scratch.take<Range>(most_runs);
    ended_ = scratch.take<Range>(most_runs);
    longest_ = 0;
    each_run(lengths_, [&](std::int64_t, std::int64_t, std::int64_t sample) {
      const std::int64_t length = length_of(sample);
      longest_ = length > longest_ ? length : longest_;
      shortest_ = length < shortest_ ? length : shortest_;
    });
  }

  bool have_lengths() const { return lengths_.data != nullptr; }
  bool have_starts() const { return start_.data != nullptr; }
  std::int64_t longest() const { return longest_; }
  bool differ() const { return shortest_ != longest_; }
  // True if no granule of neurons spans two samples.
  bool are_whole_granules() const { return lengths_.inner % granule == 0 && begin_ % granule == 0; }

  // Returns the granules in which a sample has step t. They change only where samples end.
  Ranges present(std::int64_t t) {
    if (!differ()) return {&all_, 1};
    list_at(t);
    return {present_, n_present_};
  }
  // Returns the neurons whose samples have no step t, in a tile whose other samples have it.
  Ranges ended(std::int64_t t) {
    if (t < shortest_ || !differ()) return {};
    list_at(t);
    return {ended_, n_ended_};
  }

  // The functions below call use(first, last) for neurons [first, last) of the tile: those of one or more samples.

  // Visits the samples whose last step was t - 1.
  template <class Use> void each_of_length(std::int64_t t, const Use& use) const {
    if (t < shortest_ || (since_ < t && t < until_)) return;
    each_run(lengths_, [&](std::int64_t first, std::int64_t last, std::int64_t sample) {
      if (length_of(sample) == t) use(first, last);
    });
  }

  // Visits the samples that restart before step t.
  template <class Use> void each_start(std::int64_t t, const Use& use) const {
    const unsigned char* const row = start_.data + t * start_.time_stride;
    each_run(start_, [&](std::int64_t first, std::int64_t last, std::int64_t sample) {
      if (row[sample] != 0) use(first, last);
    });
  }

  // For a recurrent call: calls use(first, last, is_fed_back) for the samples that have a step t. A sample receives the
  // results of step t - delay, which is a later step in a backward pass, where the delay is negative; it receives none
  // if it restarts between the two steps.
  template <class Use> void each_present(std::int64_t t, std::int64_t delay, std::int64_t width, const Use& use) const {
    Run run{0, 0, false};
    for (std::int64_t n = begin_; n < end_; n += width) {
      const bool present = t < length_at(n), is_fed_back = present && this->is_fed_back(t, delay, n);
      if (present && run.last == n - begin_ && run.last > run.first && run.is_fed_back == is_fed_back) {
        run.last += width;
        continue;
      }
      if (run.last > run.first) use(run.first, run.last, run.is_fed_back);
      run = {n - begin_, n - begin_ + (present ? width : 0), is_fed_back};
    }
    if (run.last > run.first) use(run.first, run.last, run.is_fed_back);
  }

 private:
  struct Run {
    std::int64_t first, last;
    bool is_fed_back;
  };

  static std::int64_t sample_of(const SamplesView& view, std::int64_t neuron) {
    return neuron / view.inner % view.count;
  }

  std::int64_t length_of(std::int64_t sample) const {
    const std::int64_t length = lengths_.data[sample];
    return length < 0 ? 0 : length < steps_ ? length : steps_;
  }
  std::int64_t length_at(std::int64_t neuron) const {
    return have_lengths() ? length_of(sample_of(lengths_, neuron)) : steps_;
  }

  bool is_fed_back(std::int64_t t, std::int64_t delay, std::int64_t neuron) const {
    const std::int64_t from = delay > 0 ? (t < delay ? 0 : t - delay + 1) : t + 1, to = delay > 0 ? t : t - delay;
    if (delay < 0 && to >= length_at(neuron)) return false;
    if (!have_starts()) return true;
    const unsigned char* const column = start_.data + sample_of(start_, neuron);
    for (std::int64_t at = from; at <= to; ++at)
      if (column[at * start_.time_stride] != 0) return false;
    return true;
  }

  static void append(Range* ranges, std::size_t& count, Range range) {
    if (count > 0 && range.first <= ranges[count - 1].last)
      ranges[count - 1].last = range.last;
    else
      ranges[count++] = range;
  }

  void list_at(std::int64_t t) {
    if (since_ <= t && t < until_) return;
    since_ = 0;
    until_ = steps_ + 1;
    n_present_ = n_ended_ = 0;
    each_run(lengths_, [&](std::int64_t first, std::int64_t last, std::int64_t sample) {
      const std::int64_t length = length_of(sample);
      if (length > t) {
        until_ = length < until_ ? length : until_;
        append(present_, n_present_, {first / granule * granule, (last + granule - 1) / granule * granule});
      } else {
        since_ = length > since_ ? length : since_;
        append(ended_, n_ended_, {first, last});
      }
    });
  }

  template <class Use> void each_run(const SamplesView& view, const Use& use) const {
    std::int64_t sample = sample_of(view, begin_), next = (begin_ / view.inner + 1) * view.inner;
    for (std::int64_t first = begin_; first < end_; first = next, next += view.inner) {
      use(first - begin_, (next < end_ ? next : end_) - begin_, sample);
      if (++sample == view.count) sample = 0;
    }
  }

  const LengthsView lengths_;
  const StartView start_;
  const std::int64_t steps_, begin_, end_;
  const Range all_;
  std::int64_t longest_, shortest_;
  // The lists are valid between two steps at which samples end.
  Range *present_ = nullptr, *ended_ = nullptr;
  std::size_t n_present_ = 0, n_ended_ = 0;
  std::int64_t since_ = 0, until_ = 0;
};

template <class Rows> class Multistep {
  using T = typename Rows::Number;
  using Stored = typename Rows::Stored;

  TileSamples samples_;
  const Tile tile_;
  const std::size_t n_states_;
  const Feedback* const feedback_;
  Scratch& scratch_;
  Rows rows_;

  Multistep(const Launch& launch, const LoopContext& context, std::int64_t begin, std::int64_t end, Scratch& scratch,
            bool reads_results = false)
      : samples_(launch, begin, end, scratch),
        tile_(launch, begin, end, samples_.longest(),
              /*is_read_again=*/reads_results || context.feedback != nullptr ||
                  (samples_.differ() && !samples_.are_whole_granules()),
              /*in_ranges=*/samples_.differ()),
        n_states_(launch.initial.size()),
        feedback_(context.feedback),
        scratch_(scratch),
        rows_(tile_, context, scratch) {}

  std::int64_t steps() const { return tile_.steps; }
  std::size_t padded() const { return static_cast<std::size_t>(tile_.padded); }

  T* take_states(std::int64_t steps = 1) {
    return scratch_.take<T>(static_cast<std::size_t>(steps) * n_states_ * padded());
  }
  // Allocates the states after a step.
  T* take_next(T* states) { return Rows::in_place ? states : take_states(); }

  void load_initial(T* states) const {
    rows_.initial(states);
    for (std::size_t s = 0; s < n_states_; ++s) {
      const StateView& given = tile_.launch.initial[s];
      if (given.data == nullptr) continue;
      with_type<T>(given.type, [&](auto stored) {
        load_numbers<T>(static_cast<const decltype(stored)*>(given.data) + tile_.begin, states + s * padded(),
                        tile_.count);
      });
    }
  }

  // ---- samples ----

  T* take_states_if(bool needed) { return needed ? take_states() : nullptr; }

  // Copies the states of the neurons [first, last) of the tile.
  void copy_states(const T* from, T* to, std::int64_t first, std::int64_t last) const {
    for (std::size_t s = 0; s < n_states_; ++s)
      std::memcpy(to + s * padded() + first, from + s * padded() + first,
                  static_cast<std::size_t>(last - first) * sizeof(T));
  }

  // Resets the states of samples that restart before step t; `fresh` are the initial states of the cell.
  void restart(std::int64_t t, const T* fresh, T* states) const {
    if (samples_.have_starts())
      samples_.each_start(t, [&](std::int64_t first, std::int64_t last) { copy_states(fresh, states, first, last); });
  }

  // Adds the gradient of samples that restart before step t to the gradient of the initial states of the cell, and sets
  // it to 0 for the states before.
  void cut(std::int64_t t, T* grad, T* own) const {
    if (!samples_.have_starts()) return;
    samples_.each_start(t, [&](std::int64_t first, std::int64_t last) {
      for (std::size_t s = 0; s < n_states_; ++s)
        for (std::int64_t i = first; i < last; ++i) {
          T& number = grad[s * padded() + static_cast<std::size_t>(i)];
          own[s * padded() + static_cast<std::size_t>(i)] += number;
          number = 0;
        }
    });
  }

  // Stores the final states of samples of t steps.
  void keep_last(std::int64_t t, const T* states, T* kept) const {
    if (samples_.differ())
      samples_.each_of_length(t,
                              [&](std::int64_t first, std::int64_t last) { copy_states(states, kept, first, last); });
  }

  // Clears row t of a result.
  template <class Element> void clear(void* result, std::int64_t t, const Range& range) const {
    if (result == nullptr) return;
    void* const to = tile_.result<Element>(result, t) + range.first;
    const std::size_t bytes = static_cast<std::size_t>(range.last - range.first) * sizeof(Element);
    if (tile_.writing_of(static_cast<Element*>(result), tile_.launch.steps) == Writing::cached)
      std::memset(to, 0, bytes);
    else
      stream_zeros(to, bytes);
  }
  // Clears the results of samples without a step t, in a tile whose other samples have it.
  template <class Element> void clear_ended(std::span<void* const> results, std::int64_t t) {
    for (const Range& range : samples_.ended(t))
      for (void* const result : results) clear<Element>(result, t, range);
  }
  // Clears the results of steps that no sample of the tile has.
  template <class Element> void clear_behind(std::span<void* const> results) const {
    for (void* const result : results)
      for (std::int64_t t = steps(); t < tile_.launch.steps; ++t) clear<Element>(result, t, {0, tile_.count});
  }

  // Inserts the gradients of the final states of samples whose last step is step t - 1.
  void enter(const BackwardLaunch& launch, std::int64_t t, T* grad, T* own) {
    if (!samples_.differ()) return;
    samples_.each_of_length(t, [&](std::int64_t first, std::int64_t last) {
      for (T* const rows : {grad, own})
        for (std::size_t s = 0; rows != nullptr && s < n_states_; ++s)
          std::memset(rows + s * padded() + first, 0, static_cast<std::size_t>(last - first) * sizeof(T));
      if (!launch.store_states) add_grad_states(launch, 0, grad, first, last);
      rows_.forget(first, last);
    });
  }

  // ---- the feedback of a recurrent call ----

  void* take_feedback() { return scratch_.take<char>(feedback_ != nullptr ? feedback_->scratch_bytes : 0); }
  void feed_back(std::int64_t t, void* memory) const {
    if (feedback_ == nullptr) return;
    if (!tile_.launch.has_samples())
      return feedback_->run(*feedback_, t, tile_.begin, tile_.begin + tile_.count, /*is_fed_back=*/true, memory);
    samples_.each_present(t, feedback_->delay, feedback_->width,
                          [&](std::int64_t first, std::int64_t last, bool is_fed_back) {
                            feedback_->run(*feedback_, t, tile_.begin + first, tile_.begin + last, is_fed_back, memory);
                          });
  }

  // ---- rows of states in the caller's memory ----

  // Stores row `row` of a result of `rows` rows.
  void store_row(void* result, std::int64_t rows, std::int64_t row, const T* numbers) const {
    T* const to = tile_.result<T>(result, row);
    const std::size_t bytes = static_cast<std::size_t>(tile_.count) * sizeof(T);
    if (tile_.writing_of(static_cast<T*>(result), rows) == Writing::cached)
      std::memcpy(to, numbers, bytes);
    else
      stream_bytes(to, numbers, bytes);
  }

  void store_states(const ForwardLaunch& launch, std::int64_t t, const T* states) const {
    const std::int64_t rows = launch.store_states ? launch.steps : 1;
    for (std::size_t s = 0; s < n_states_; ++s) store_row(launch.states[s], rows, t, states + s * padded());
  }

  // Returns the checkpoint row of state s before step t.
  std::int64_t checkpoint_row(std::int64_t t, std::size_t s) const {
    return (t / tile_.launch.checkpoint_length - 1) * static_cast<std::int64_t>(n_states_) +
           static_cast<std::int64_t>(s);
  }

  void store_checkpoint(const ForwardLaunch& launch, std::int64_t t, const T* states) const {
    const std::int64_t rows = (launch.steps - 1) / launch.checkpoint_length * static_cast<std::int64_t>(n_states_);
    for (std::size_t s = 0; s < n_states_; ++s)
      store_row(launch.checkpoints, rows, checkpoint_row(t, s), states + s * padded());
  }

  void load_checkpoint(const BackwardLaunch& launch, std::int64_t t, T* states) const {
    for (std::size_t s = 0; s < n_states_; ++s)
      load_numbers<T, T>(
          static_cast<const T*>(launch.checkpoints) + checkpoint_row(t, s) * launch.neurons + tile_.begin,
          states + s * padded(), tile_.count);
  }

  // ---- forward ----

  // Packs a row of the first output. Tiles and rows begin with whole bytes.
  void pack_output(const ForwardLaunch& launch, std::int64_t t) const {
    const PackedOutput& packed = launch.packed;
    const std::int64_t first = (t * launch.neurons + tile_.begin) * packed.bits / 8;
    if (!spike_bits().pack(tile_.result<Stored>(launch.outputs[0], t), launch.type, tile_.count, packed.bits,
                           packed.numbers + first))
      std::atomic_ref(*packed.valid).store(0, std::memory_order_relaxed);
  }

  void forward(const ForwardLaunch& launch) {
    rows_.take_forward(launch);
    T* states = take_states();
    T* next = take_next(states);
    T* const kept = take_states_if(samples_.have_lengths());
    T* const fresh = take_states_if(samples_.have_starts());
    void* const for_feedback = take_feedback();
    if (scratch_.counts_only() || !rows_.is_legal()) return;
    load_initial(states);
    if (fresh != nullptr) rows_.initial(fresh);
    keep_last(0, states, kept);
    for (std::int64_t t = 0; t < steps(); ++t) {
      restart(t, fresh, states);
      if (launch.checkpoints != nullptr && t > 0 && t % launch.checkpoint_length == 0)
        store_checkpoint(launch, t, states);
      feed_back(t, for_feedback);
      rows_.step(launch, t, samples_.present(t), states, next);
      std::swap(states, next);
      if (launch.packed.bits != 0) pack_output(launch, t);
      keep_last(t + 1, states, kept);
      if (launch.store_states) store_states(launch, t, states);
      clear_ended<Stored>(launch.outputs, t);
      if (launch.store_states) clear_ended<T>(launch.states, t);
    }
    clear_behind<Stored>(launch.outputs);
    if (launch.store_states)
      clear_behind<T>(launch.states);
    else
      store_states(launch, 0, samples_.differ() ? kept : states);
    end_of_stream();
  }

  // ---- backward: segments from the last to the first, each recomputed from its checkpoint ----

  void backward(const BackwardLaunch& launch) {
    const std::int64_t length = launch.checkpoint_length < launch.steps ? launch.checkpoint_length : launch.steps;
    rows_.take_backward(launch);
    T* const before = take_states(length);  // the states before each step of the segment
    T* grad = take_states();
    T* grad_before = take_next(grad);
    T* const fresh = take_states_if(samples_.have_starts());
    T* const own = take_states_if(samples_.have_starts());
    void* const for_feedback = take_feedback();
    if (scratch_.counts_only() || !rows_.is_legal()) return;

    std::memset(grad, 0, n_states_ * padded() * sizeof(T));
    if (!launch.store_states) add_grad_states(launch, 0, grad, 0, tile_.count);
    if (fresh != nullptr) {
      rows_.initial(fresh);
      std::memset(own, 0, n_states_ * padded() * sizeof(T));
    }
    const std::int64_t last = steps() == 0 ? -1 : (steps() - 1) / length * length;
    for (std::int64_t t0 = last; t0 >= 0; t0 -= length) {
      const Segment segment{t0, t0 + length < steps() ? t0 + length : steps(), last};
      recompute(launch, segment, fresh, before);
      for (std::int64_t t = segment.t1 - 1; t >= t0; --t) {
        enter(launch, t + 1, grad, own);
        if (launch.store_states) add_grad_states(launch, t, grad, 0, tile_.count);
        feed_back(t, for_feedback);
        rows_.vjp(launch, t, samples_.present(t), segment, states_before(before, t - t0), grad, grad_before);
        std::swap(grad, grad_before);
        cut(t, grad, own);
        clear_ended<Stored>(launch.grad_inputs, t);
      }
    }
    enter(launch, 0, grad, own);
    clear_behind<Stored>(launch.grad_inputs);
    store_grad_states(launch, grad);
    if (launch.any_grad_param) {
      keep_own(launch, own, grad);
      rows_.finish(launch, grad);
    }
    end_of_stream();
  }

  // Returns the states before the i-th step of a segment.
  T* states_before(T* before, std::int64_t i) const {
    return before + static_cast<std::size_t>(i) * n_states_ * padded();
  }

  void recompute(const BackwardLaunch& launch, const Segment& segment, const T* fresh, T* before) {
    segment.t0 == 0 ? load_initial(before) : load_checkpoint(launch, segment.t0, before);
    restart(segment.t0, fresh, before);
    for (std::int64_t t = segment.t0; t + 1 < segment.t1; ++t) {
      T* const after = states_before(before, t + 1 - segment.t0);
      rows_.advance(launch, t, samples_.present(t), states_before(before, t - segment.t0), after);
      restart(t + 1, fresh, after);
    }
  }

  // Adds the caller's gradients of the states, if any, for the neurons [first, last) of the tile.
  void add_grad_states(const BackwardLaunch& launch, std::int64_t t, T* grad, std::int64_t first,
                       std::int64_t last) const {
    for (std::size_t s = 0; s < n_states_; ++s) {
      const SequenceView& view = launch.grad_states[s];
      if (view.data == nullptr) continue;
      T* const sum = grad + s * padded();
      if (view.neuron_stride == 0) {
        const T number = static_cast<const T*>(view.data)[t * view.time_stride];
        for (std::int64_t i = first; i < last; ++i) sum[i] += number;
      } else {
        const T* const row = tile_.row<T>(view, t);
        for (std::int64_t i = first; i < last; ++i) sum[i] += row[i];
      }
    }
  }

  void store_grad_states(const BackwardLaunch& launch, const T* grad) const {
    for (std::size_t s = 0; s < n_states_; ++s)
      if (launch.grad_initial[s] != nullptr)
        with_type<T>(launch.initial[s].type, [&](auto stored) {
          store_numbers<T>(grad + s * padded(), static_cast<decltype(stored)*>(launch.grad_initial[s]) + tile_.begin,
                           tile_.count);
        });
  }

  // Keeps in `grad` only the gradients of initial states of the cell, including those of restarts.
  void keep_own(const BackwardLaunch& launch, const T* own, T* grad) const {
    for (std::size_t s = 0; s < n_states_; ++s) {
      T* const row = grad + s * padded();
      if (launch.initial[s].data != nullptr) std::memset(row, 0, padded() * sizeof(T));
      if (own == nullptr) continue;
      for (std::size_t i = 0; i < padded(); ++i) row[i] += own[s * padded() + i];
    }
  }

  static std::size_t forward_scratch(const ForwardLaunch& launch, const LoopContext& context, std::int64_t neurons) {
    Scratch scratch(nullptr);
    Multistep(launch, context, 0, neurons, scratch).forward(launch);
    return scratch.used();
  }

  static bool run_forward(const ForwardLaunch& launch, const LoopContext& context, std::int64_t begin, std::int64_t end,
                          void* memory) {
    Scratch scratch(memory);
    Multistep loop(launch, context, begin, end, scratch, /*reads_results=*/launch.packed.bits != 0);
    loop.forward(launch);
    return loop.rows_.is_legal();
  }

  static std::size_t backward_scratch(const BackwardLaunch& launch, const LoopContext& context, std::int64_t neurons) {
    Scratch scratch(nullptr);
    Multistep(launch, context, 0, neurons, scratch).backward(launch);
    return scratch.used();
  }

  static bool run_backward(const BackwardLaunch& launch, const LoopContext& context, std::int64_t begin,
                           std::int64_t end, void* memory) {
    Scratch scratch(memory);
    Multistep loop(launch, context, begin, end, scratch);
    loop.backward(launch);
    return loop.rows_.is_legal();
  }

 public:
  static constexpr Loop both_ways() { return {forward_scratch, run_forward, backward_scratch, run_backward}; }
  static constexpr Loop forward_only() { return {forward_scratch, run_forward, nullptr, nullptr}; }
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
