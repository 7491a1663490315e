// The rules by which networks are drawn: the places of the connections of a line, and their weights and delays. C++17
// for the host compiler and NVRTC.
//
// A projection is a matrix of `count` lines of `width` places: its rows or, if every column has the same number of
// connections, its columns. Every random number is a word of Philox at a counter of seed, projection, line, position in
// the line and attempt, so that it does not depend on the order of the draws: the network is the same for any number of
// threads and on every device. An integer below n is floor(word n / 2^32), whose distribution is uneven by n / 2^32 at
// most.
#pragma once

#include "csrc/neuron/random.h"

namespace spikeforge {
namespace event {

using Place = long long;

// The purpose of a random word: the second half of the third counter.
enum class Purpose : unsigned { places, numbers, lines, count };

struct Lines {
  unsigned long long seed = 0;
  unsigned projection = 0;
  int without_own = 0;  // true if place own + l of line l has no connection
  Place count = 0, width = 0;
  Place own = 0;
  float places_a_bit = 0;  // for a fixed probability: -1 / log2(1 - p)
  int first = 0;           // the column of the matrix of place 0
};

// The distribution of the weights or delays of a projection:
//   constant    first
//   uniform     from first to second
//   normal      mean first, standard deviation second
//   lognormal   e to the power of that normal number
// Numbers outside [low, high] are redrawn, or clipped to low or high.
enum class LawKind : int { constant, uniform, normal, lognormal };
struct Law {
  double first = 0, second = 0, low = 0, high = 0;
  LawKind kind = LawKind::constant;
  int redraws = 0;
};

SPIKEFORGE_PLAIN_FN PhiloxWords words_of(const Lines& lines, Purpose purpose, Place line, Place block,
                                         unsigned attempt) {
  const unsigned stream = lines.projection * static_cast<unsigned>(Purpose::count) + static_cast<unsigned>(purpose);
  return philox({{static_cast<unsigned>(block), static_cast<unsigned>(line), stream, attempt}}, lines.seed);
}

SPIKEFORGE_PLAIN_FN Place below(Place n, unsigned word) {
  return static_cast<Place>(static_cast<unsigned long long>(word) * static_cast<unsigned long long>(n) >> 32);
}

SPIKEFORGE_PLAIN_FN bool leaves_own_out(const Lines& lines, Place line) {
  return lines.without_own != 0 && lines.own + line >= 0 && lines.own + line < lines.width;
}

// Returns the i-th place that may have a connection.
SPIKEFORGE_PLAIN_FN Place place_of(const Lines& lines, Place line, Place i) {
  return i + (leaves_own_out(lines, line) && i >= lines.own + line ? 1 : 0);
}

SPIKEFORGE_PLAIN_FN Place legal_places(const Lines& lines, Place line) {
  return lines.width - (leaves_own_out(lines, line) ? 1 : 0);
}

// Draws the places for the positions of a line; at() is fast for consecutive positions.
struct DrawnPlaces {
  const Lines& lines;
  Place line;
  PhiloxWords words{};
  Place block = -1;

  SPIKEFORGE_FN Place at(Place position) {
    if (position / 4 != block) {
      block = position / 4;
      words = words_of(lines, Purpose::places, line, block, 0);
    }
    return place_of(lines, line, below(legal_places(lines, line), words.word[position & 3]));
  }
};

// Redraws the place of a position after a collision with another position.
SPIKEFORGE_PLAIN_FN Place drawn_again(const Lines& lines, Place line, Place position, unsigned attempt) {
  const PhiloxWords words = words_of(lines, Purpose::places, line, position / 4, attempt);
  return place_of(lines, line, below(legal_places(lines, line), words.word[position & 3]));
}

// Draws the line of a connection, if the total number of connections is fixed and all legal pairs have the same
// probability.
SPIKEFORGE_PLAIN_FN Place line_of(const Lines& lines, Place connection) {
  const Place block = connection / 2;
  for (unsigned attempt = 0;; ++attempt) {
    const PhiloxWords words = words_of(lines, Purpose::lines, block >> 32, block, attempt);
    const unsigned first = words.word[2 * (connection & 1)], second = words.word[2 * (connection & 1) + 1];
    const Place line = below(lines.count, first);
    if (!leaves_own_out(lines, line) || below(lines.width, second) != lines.own + line) return line;
  }
}

// Calls visit(place) for places of a line, each of which is chosen with the same probability, in ascending order. The
// distance from one to the next is 1 + floor(surprise(word) places_a_bit), the geometric distribution.
template <class Visit> SPIKEFORGE_FN void for_each_with_probability(const Lines& lines, Place line, Visit&& visit) {
  PhiloxWords words{};
  Place place = 0;
  for (Place draw = 0;; ++draw) {
    if (draw % 4 == 0) words = words_of(lines, Purpose::places, line, draw / 4, 0);
    const float gap = surprise(words.word[draw & 3]) * lines.places_a_bit;
    if (!(gap < static_cast<float>(lines.width - place))) return;
    place += static_cast<Place>(gap);
    if (place >= lines.width) return;
    if (!(leaves_own_out(lines, line) && place == lines.own + line)) visit(place);
    ++place;
  }
}

// Calls visit(place) for `wanted` distinct places of a line, in ascending order (Knuth, volume 2, algorithm S).
template <class Visit>
SPIKEFORGE_FN void for_each_of_a_selection(const Lines& lines, Place line, Place wanted, Visit&& visit) {
  PhiloxWords words{};
  const Place legal = legal_places(lines, line);
  for (Place i = 0; wanted > 0; ++i) {
    if (i % 4 == 0) words = words_of(lines, Purpose::places, line, i / 4, 0);
    if (below(legal - i, words.word[i & 3]) >= wanted) continue;
    visit(place_of(lines, line, i));
    --wanted;
  }
}

// True if distinct places are selected; otherwise they are drawn, and redrawn after a collision.
SPIKEFORGE_PLAIN_FN bool is_dense(const Lines& lines, Place line, Place wanted) {
  return 2 * wanted > legal_places(lines, line);
}

// Returns e^x for x from -87 to 88, to a float's precision.
SPIKEFORGE_PLAIN_FN float exponential(float x) {
  const float n = floor(x * 1.44269504F + 0.5F);
  const float r = (x - n * 0.693145752F) - n * 1.42860677e-6F;  // ln 2 in two parts; the first has few bits
  const float power =
      1.0F +
      r * (1.0F +
           r * (0.5F + r * (0.166666667F +
                            r * (4.16666667e-2F + r * (8.33333333e-3F + r * (1.38888889e-3F + r * 1.98412698e-4F))))));
  return power * as_float(static_cast<unsigned>(static_cast<int>(n) + 127) << 23);
}

SPIKEFORGE_PLAIN_FN float number_of_word(const Law& law, unsigned word) {
  const float u = uniform_of(word);
  const auto first = static_cast<float>(law.first), second = static_cast<float>(law.second);
  if (law.kind == LawKind::uniform) return first + (second - first) * u;
  const float x = first + second * normal_of(u);
  return law.kind == LawKind::normal ? x : exponential(x);
}

// Draws the weight (`of` is 0) or the delay (`of` is 1) of a connection.
SPIKEFORGE_PLAIN_FN double number_of_connection(const Lines& lines, const Law& law, Place line, Place position,
                                                const PhiloxWords& words, int of) {
  if (law.kind == LawKind::constant) return law.first;
  const int place = static_cast<int>(2 * (position & 1)) + of;
  auto number = static_cast<double>(number_of_word(law, words.word[place]));
  for (unsigned attempt = 1; law.redraws != 0 && !(number >= law.low && number <= law.high); ++attempt)
    number = number_of_word(law, words_of(lines, Purpose::numbers, line, position / 2, attempt).word[place]);
  return number < law.low ? law.low : number > law.high ? law.high : number;
}

// ---- the stages on a device ----

enum class ConnectStep : int {
  count_lines,   // for `total` connections: counted[line] += 1
  count_places,  // for a fixed probability: counted[line]
  draw,          // fills the places of all lines, by `rule`
  count_rows,    // counted[drawn[i]] += 1
  place_rows,    // stores the line of drawn[i] in its row: indices[starts[row] + counted[row]++]
  sort,          // sorts the indices of every row
  numbers        // draws the weights or delays of all connections
};
enum class PlaceRule : int { all, one, drawn, probable, distinct };
enum class NumberType : int { f16, bf16, f32, f64, u8, i32 };

// The counts[line] connections of a line start at starts[line].
struct ConnectArguments {
  Lines lines = {};
  Law law = {};
  Place total = 0;
  const Place* starts = nullptr;
  const int* counts = nullptr;
  int* counted = nullptr;
  int* indices = nullptr;      // the result
  const int* drawn = nullptr;  // [total], `degree` per line
  void* numbers = nullptr;
  PlaceRule rule = PlaceRule::all;
  NumberType type = NumberType::f16;
  int degree = 1;
  int of = 0;  // 0: weights, 1: delays, which are rounded to integers
};

static_assert(sizeof(Lines) == 6 * 8, "words without padding");
static_assert(sizeof(Law) == 5 * 8, "words without padding");
static_assert(sizeof(ConnectArguments) == sizeof(Lines) + sizeof(Law) + 9 * 8, "words without padding");

}  // namespace event
}  // namespace spikeforge
