// Draws networks with torch's threads. A thread owns its lines; counts in lines of other threads are atomic.
#include "ops/event/connect_drawing.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace spikeforge::ops::sparse {
namespace {

using event::ConnectArguments;
using event::ConnectStep;
using event::Lines;
using event::Place;
using event::PlaceRule;

constexpr Place lines_of_a_thread = 64, connections_of_a_thread = 1 << 14;

template <class F> void for_each(Place count, Place least, F&& f) {
  at::parallel_for(0, count, least, [&](Place begin, Place end) {
    for (Place i = begin; i < end; ++i) f(i);
  });
}

int count_one(int& counter) { return std::atomic_ref(counter).fetch_add(1, std::memory_order_relaxed); }

// Redraws duplicates except for the first, until all are distinct.
void draw_distinct(const Lines& lines, Place line, Place wanted, int* places) {
  event::DrawnPlaces drawn{lines, line};
  for (Place i = 0; i < wanted; ++i) places[i] = static_cast<int>(lines.first + drawn.at(i));
  for (unsigned attempt = 1;; ++attempt) {
    std::sort(places, places + wanted);
    bool alike = false;
    for (Place i = wanted - 1; i > 0; --i) {
      if (places[i] != places[i - 1]) continue;
      places[i] = static_cast<int>(lines.first + event::drawn_again(lines, line, i, attempt));
      alike = true;
    }
    if (!alike) return;
  }
}

void draw_line(const ConnectArguments& args, Place line) {
  const Lines& lines = args.lines;
  int* const places = args.indices + args.starts[line];
  const Place count = args.counts[line];
  Place written = 0;
  const auto write = [&](Place place) { places[written++] = static_cast<int>(lines.first + place); };
  switch (args.rule) {
    case PlaceRule::all:
      for (Place i = 0; i < count; ++i) write(event::place_of(lines, line, i));
      return;
    case PlaceRule::one:
      if (count != 0) write(line);
      return;
    case PlaceRule::drawn: {
      event::DrawnPlaces drawn{lines, line};
      for (Place i = 0; i < count; ++i) write(drawn.at(i));
      return;
    }
    case PlaceRule::probable: event::for_each_with_probability(lines, line, write); return;
    case PlaceRule::distinct:
      if (event::is_dense(lines, line, count))
        event::for_each_of_a_selection(lines, line, count, write);
      else
        draw_distinct(lines, line, count, places);
  }
}

template <class T> void draw_numbers(const ConnectArguments& args, Place line) {
  T* const numbers = static_cast<T*>(args.numbers) + args.starts[line];
  PhiloxWords words{};
  for (Place i = 0; i < args.counts[line]; ++i) {
    if (i % 2 == 0) words = event::words_of(args.lines, event::Purpose::numbers, line, i / 2, 0);
    const double number = event::number_of_connection(args.lines, args.law, line, i, words, args.of);
    if constexpr (std::is_same_v<T, double>)
      numbers[i] = number;
    else if constexpr (std::is_integral_v<T>)
      numbers[i] = static_cast<T>(std::floor(number + 0.5));
    else
      numbers[i] = static_cast<T>(static_cast<float>(number));
  }
}

auto drawer_of(event::NumberType type) {
  switch (type) {
    case event::NumberType::f16: return draw_numbers<c10::Half>;
    case event::NumberType::bf16: return draw_numbers<c10::BFloat16>;
    case event::NumberType::f32: return draw_numbers<float>;
    case event::NumberType::f64: return draw_numbers<double>;
    case event::NumberType::u8: return draw_numbers<std::uint8_t>;
    default: return draw_numbers<std::int32_t>;
  }
}

}  // namespace

void connect_cpu(ConnectStep step, const ConnectArguments& args) {
  const Lines& lines = args.lines;
  switch (step) {
    case ConnectStep::count_lines:
      return for_each(args.total, connections_of_a_thread,
                      [&](Place i) { count_one(args.counted[event::line_of(lines, i)]); });
    case ConnectStep::count_places:
      return for_each(lines.count, lines_of_a_thread, [&](Place line) {
        int count = 0;
        event::for_each_with_probability(lines, line, [&](Place) { ++count; });
        args.counted[line] = count;
      });
    case ConnectStep::draw: return for_each(lines.count, lines_of_a_thread, [&](Place line) { draw_line(args, line); });
    case ConnectStep::count_rows:
      return for_each(args.total, connections_of_a_thread, [&](Place i) { count_one(args.counted[args.drawn[i]]); });
    case ConnectStep::place_rows:
      return for_each(args.total, connections_of_a_thread, [&](Place i) {
        const int row = args.drawn[i];
        args.indices[args.starts[row] + count_one(args.counted[row])] = static_cast<int>(lines.first + i / args.degree);
      });
    case ConnectStep::sort:
      return for_each(lines.count, lines_of_a_thread, [&](Place row) {
        int* const begin = args.indices + args.starts[row];
        std::sort(begin, begin + args.counts[row]);
      });
    case ConnectStep::numbers:
      return for_each(lines.count, lines_of_a_thread,
                      [&, draw = drawer_of(args.type)](Place line) { draw(args, line); });
  }
}

}  // namespace spikeforge::ops::sparse
