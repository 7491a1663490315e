#include "csrc/cpu/frames/frames.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace spikeforge::cpu {
namespace {

using namespace frames;

constexpr std::size_t piece = 512;  // events whose columns are converted at once: they stay in the first cache
template <class Number> using Piece = std::array<Number, piece>;

// Coordinates outside of int become the least one, which is on no sensor.
template <class To, class From> void convert(const void* column, Int begin, std::size_t count, Piece<To>& to) {
  const auto* const from = static_cast<const From*>(column) + begin;
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::in_range<To>(from[i]) ? static_cast<To>(from[i]) : std::numeric_limits<To>::min();
}

template <class To> void convert(const void* column, Column type, Int begin, std::size_t count, Piece<To>& to) {
  constexpr std::array functions = {convert<To, std::uint8_t>, convert<To, std::int8_t>,   convert<To, std::uint16_t>,
                                    convert<To, std::int16_t>, convert<To, std::uint32_t>, convert<To, std::int32_t>,
                                    convert<To, std::int64_t>};
  if (column == nullptr)
    std::fill_n(to.begin(), count, To(0));
  else
    functions[static_cast<std::size_t>(type)](column, begin, count, to);
}

Int time_of(const FramesLaunch& call, Int event) {
  Piece<Int> time;
  convert(call.arguments.t, call.columns.t, event, 1, time);
  return time[0];
}

Steps steps_of_sample(const FramesLaunch& call, int sample) {
  const FramesArguments& a = call.arguments;
  const Int begin = a.offsets[sample], end = a.offsets[sample + 1];
  if (begin == end) return {};
  return steps_of(a, call.values == Values::voxel, sample, end - begin, time_of(call, begin), time_of(call, end - 1));
}

// Adds events to the frames of a sample in the steps [first, last). A frame is filled with zeros right before its first
// event, so that it is in the cache.
template <Values values, class Number> class Adder {
 public:
  Adder(const FramesArguments& a, int sample, int first, int last)
      : a_(a), sample_(sample), first_(first), last_(last), begun_(static_cast<std::size_t>(last - first)) {}

  void begin(Int step) {
    if (!has(step) || std::exchange(begun_[static_cast<std::size_t>(step - first_)], 1) != 0) return;
    std::fill_n(frame(step), a_.cells, Number(0));
  }
  void begin_all() {
    for (int step = first_; step < last_; ++step) begin(step);
  }

  // `step` has begun, and for voxels the following one.
  void add(const Steps& steps, Int step, Int remainder, int cell, Int sign) {
    if constexpr (values == Values::voxel) {
      if (has(step)) frame(step)[cell] += sign * (steps.length - remainder);
      if (has(step + 1)) frame(step + 1)[cell] += sign * remainder;
      return;
    }
    if (!has(step)) return;
    if constexpr (values == Values::count) frame(step)[cell] += Number(1);
    if constexpr (values == Values::binary) frame(step)[cell] = Number(1);
    if constexpr (values == Values::bits) frame(step)[cell / 32] |= 1u << (cell % 32);
    if constexpr (values == Values::surface)
      frame(step)[cell] = std::max(frame(step)[cell], step * steps.length + remainder + 1);
  }

 private:
  bool has(Int step) const { return step >= first_ && step < last_; }
  Number* frame(Int step) const { return static_cast<Number*>(a_.out) + (step * a_.samples + sample_) * a_.cells; }

  const FramesArguments a_;
  const Int sample_, first_, last_;
  std::vector<char> begun_;
};

// The cells and scaled times of consecutive events. Skipped events have no cell.
struct Placed {
  Piece<int> cell, p;
  Piece<Int> scaled;
  bool has_wrong = false;  // some events are wrong_cell
};

void place(const FramesLaunch& call, const Steps& steps, int sample, Int begin, std::size_t count, Placed& placed) {
  const FramesArguments a = call.arguments;
  const int out_width = row_width(a, call.values);
  Piece<int> x, y;
  convert(a.x, call.columns.x, begin, count, x);
  convert(a.y, call.columns.y, begin, count, y);
  convert(a.p, call.columns.p, begin, count, placed.p);
  if (a.by_count == 0)
    convert(a.t, call.columns.t, begin, count, placed.scaled);
  else
    std::iota(placed.scaled.begin(), placed.scaled.end(), begin - a.offsets[sample]);
  const bool is_whole = has_whole_frames(a);
  const int before_first = steps.begins_with_first ? wrong_cell : no_cell;
  int least = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int cell = is_whole ? whole_cell_of(a, out_width, x[i], y[i], placed.p[i])
                              : cell_of(a, out_width, sample, x[i], y[i], placed.p[i]);
    placed.cell[i] = scale(steps, placed.scaled[i], placed.scaled[i]) || cell == wrong_cell ? cell : before_first;
    least = std::min(least, placed.cell[i]);
  }
  placed.has_wrong = least == wrong_cell;
  if (a.keep == nullptr) return;
  for (std::size_t i = 0; i < count; ++i)
    if (a.keep[begin + static_cast<Int>(i)] == 0 && placed.cell[i] >= 0) placed.cell[i] = no_cell;
}

template <Values values, class Number> Int add_events_of(const FramesLaunch& call, int sample, int first, int last) {
  const FramesArguments& a = call.arguments;
  const Steps steps = steps_of_sample(call, sample);
  Adder<values, Number> frames(a, sample, first, last);
  const Int end = a.offsets[sample + 1];
  Int step = -1, of_step = -steps.length, wrong = -1;  // of_step: the scaled time at which `step` begins
  Placed placed;
  for (Int at = a.offsets[sample]; at < end; at += piece) {
    const auto count = static_cast<std::size_t>(std::min<Int>(piece, end - at));
    place(call, steps, sample, at, count, placed);
    if (placed.has_wrong && wrong < 0)
      wrong = at + (std::find(placed.cell.begin(), placed.cell.end(), wrong_cell) - placed.cell.begin());
    for (std::size_t i = 0; i < count; ++i) {
      if (placed.cell[i] < 0) continue;
      if (!is_below(placed.scaled[i] - of_step, steps.length)) {
        step = quotient_of(placed.scaled[i], steps.length);
        of_step = step * steps.length;
        frames.begin(step);
        if (values == Values::voxel) frames.begin(step + 1);
      }
      frames.add(steps, step, placed.scaled[i] - of_step, placed.cell[i], sign_of(a, placed.p[i]));
    }
  }
  frames.begin_all();
  return wrong;
}

template <class Number> void finish_numbers(const FramesLaunch& call, int sample, Int first, Int last) {
  const FramesArguments& a = call.arguments;
  const Steps steps = steps_of_sample(call, sample);
  const double divisor = divisor_of(a, call.values, steps);
  std::vector<Int> latest(static_cast<std::size_t>(last - first));
  for (int step = 0; step < a.steps; ++step) {
    const Int begin = (Int{step} * a.samples + sample) * a.cells + first;
    const Int* const sums = static_cast<const Int*>(a.out) + begin;
    Number* const numbers = static_cast<Number*>(a.numbers) + begin;
    for (std::size_t i = 0; i < latest.size(); ++i) {
      latest[i] = call.values == Values::surface ? std::max(latest[i], sums[i]) : sums[i];
      numbers[i] = static_cast<Number>(number_of(call.values, steps, step, latest[i], divisor));
    }
  }
}

}  // namespace

Int add_events(const FramesLaunch& call, int sample, int first, int last) {
  const bool is_double = call.type == DType::f64;
  switch (call.values) {
    case Values::count:
      return (is_double ? add_events_of<Values::count, double> : add_events_of<Values::count, float>)(call, sample,
                                                                                                      first, last);
    case Values::binary:
      return (is_double ? add_events_of<Values::binary, double> : add_events_of<Values::binary, float>)(call, sample,
                                                                                                        first, last);
    case Values::bits: return add_events_of<Values::bits, std::uint32_t>(call, sample, first, last);
    case Values::voxel: return add_events_of<Values::voxel, Int>(call, sample, first, last);
    default: return add_events_of<Values::surface, Int>(call, sample, first, last);
  }
}

void finish_frames(const FramesLaunch& call, int sample, Int first, Int last) {
  (call.type == DType::f64 ? finish_numbers<double> : finish_numbers<float>)(call, sample, first, last);
}

}  // namespace spikeforge::cpu
