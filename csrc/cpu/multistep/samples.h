// The samples that contiguous neurons belong to: their lengths, and the steps at which they start anew.
#pragma once

#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tile.h"
#include "csrc/kernels/multistep/launch.h"

#include <cstddef>
#include <cstdint>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

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

  // The granules in which a sample has step t: between two ends of samples they stay the same.
  Ranges present(std::int64_t t) {
    if (!differ()) return {&all_, 1};
    list_at(t);
    return {present_, n_present_};
  }
  // The neurons whose samples have no step t, in a tile whose other samples have it.
  Ranges ended(std::int64_t t) {
    if (t < shortest_ || !differ()) return {};
    list_at(t);
    return {ended_, n_ended_};
  }

  // The functions below call use(first, last) for neurons [first, last) of the tile: those of one or more samples.

  // Samples whose last step was t - 1.
  template <class Use> void each_of_length(std::int64_t t, const Use& use) const {
    if (t < shortest_ || (since_ < t && t < until_)) return;
    each_run(lengths_, [&](std::int64_t first, std::int64_t last, std::int64_t sample) {
      if (length_of(sample) == t) use(first, last);
    });
  }

  // Samples that start anew before step t.
  template <class Use> void each_start(std::int64_t t, const Use& use) const {
    const unsigned char* const row = start_.data + t * start_.time_stride;
    each_run(start_, [&](std::int64_t first, std::int64_t last, std::int64_t sample) {
      if (row[sample] != 0) use(first, last);
    });
  }

  // For a recurrent call: use(first, last, is_fed_back) for the samples that have a step t. A sample receives the
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
  // The lists hold from one step to another; samples end at these two.
  Range *present_ = nullptr, *ended_ = nullptr;
  std::size_t n_present_ = 0, n_ended_ = 0;
  std::int64_t since_ = 0, until_ = 0;
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
