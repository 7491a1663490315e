// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/layer/channel_statistics.h"
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/vec.h"

#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <class T, class Stored> class Statistics {
  using V = Vec<T>;
  static constexpr std::int64_t lanes = V::lanes;
  static constexpr std::int64_t most_rows = 64;       // rows whose sums are combined in T
  static constexpr std::int64_t most_elements = 512;  // of one row whose sums are combined in T

 public:
  static void moments(const Stored* x, std::int64_t rows, std::int64_t channels, std::int64_t inner, Moments* moments) {
    for (std::int64_t c = 0; c < channels; ++c) moments[c] = {0, 0};
    inner == 1 ? along_rows(x, rows, channels, moments) : along_elements(x, rows, channels, inner, moments);
  }

 private:
  // Processes a vector of neighbouring channels at a time.
  static void along_rows(const Stored* x, std::int64_t rows, std::int64_t channels, Moments* moments) {
    for (std::int64_t r = 0; r < rows; r += most_rows) {
      const std::int64_t count = rows - r < most_rows ? rows - r : most_rows;
      const Stored* const first = x + r * channels;
      std::int64_t c = 0;
      for (; c + lanes <= channels; c += lanes) add_rows(first + c, count, channels, r, lanes, moments + c);
      if (c == channels) continue;
      Stored rest[most_rows * lanes] = {};
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(static_cast<void*>(rest + i * lanes), first + i * channels + c,
                    static_cast<std::size_t>(channels - c) * sizeof(Stored));
      add_rows(rest, count, lanes, r, channels - c, moments + c);
    }
  }

  static void add_rows(const Stored* x, std::int64_t rows, std::int64_t stride, std::int64_t before,
                       std::int64_t channels, Moments* moments) {
    V center(0);
    for (std::int64_t i = 0; i < rows; ++i) center = center + load_row<T>(x + i * stride);
    center = center / V(static_cast<double>(rows));
    V sum(0), squares(0);
    for (std::int64_t i = 0; i < rows; ++i) add(load_row<T>(x + i * stride) - center, sum, squares);
    for (std::int64_t c = 0; c < channels; ++c)
      join(center.value[c], sum.value[c], squares.value[c], rows, static_cast<double>(before), moments[c]);
  }

  // For contiguous elements of a channel: processes a vector of them at a time.
  static void along_elements(const Stored* x, std::int64_t rows, std::int64_t channels, std::int64_t inner,
                             Moments* moments) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < channels; ++c, x += inner)
        for (std::int64_t i = 0; i < inner; i += most_elements)
          add_elements(x + i, inner - i < most_elements ? inner - i : most_elements, static_cast<double>(r * inner + i),
                       moments[c]);
  }

  static void add_elements(const Stored* x, std::int64_t count, double before, Moments& moments) {
    const std::int64_t full = count / lanes * lanes;
    V sums(0);
    for (std::int64_t i = 0; i < full; i += lanes) sums = sums + load_row<T>(x + i);
    T center = sum_of(sums);
    for (std::int64_t i = full; i < count; ++i) center += static_cast<T>(x[i]);
    center /= static_cast<T>(count);

    V differences(0), squares(0);
    for (std::int64_t i = 0; i < full; i += lanes) add(load_row<T>(x + i) - V(center), differences, squares);
    T s = sum_of(differences), q = sum_of(squares);
    for (std::int64_t i = full; i < count; ++i) {
      const T difference = static_cast<T>(x[i]) - center;
      s += difference;
      q += difference * difference;
    }
    join(center, s, q, count, before, moments);
  }

  static T sum_of(V v) {
    T sum = 0;
    for (std::int64_t k = 0; k < lanes; ++k) sum += v.value[k];
    return sum;
  }

  static void add(V difference, V& sum, V& squares) {
    sum = sum + difference;
    squares = squares + difference * difference;
  }

  // Joins the moments of `before` numbers with those of `count` further numbers, given by the sums of the differences
  // from `center`, which is close to their mean, and of their squares.
  static void join(double center, double sum, double squares, std::int64_t count, double before, Moments& moments) {
    const auto n = static_cast<double>(count);
    const double rest = squares - sum * sum / n;
    moments = joined(moments, before, {center + sum / n, rest < 0 ? 0 : rest}, n);
  }
};

void moments(const void* x, DType type, std::int64_t rows, std::int64_t channels, std::int64_t inner, Moments* of) {
  with_element(type, [&](auto element) {
    using Element = decltype(element);
    Statistics<Compute<Element>, Element>::moments(static_cast<const Element*>(x), rows, channels, inner, of);
  });
}

constexpr ChannelStatistics table = {moments};

}  // namespace
}  // namespace CPU_CAPABILITY

const ChannelStatistics& SPIKEFORGE_OF_SET(channel_statistics)() { return table; }

}  // namespace spikeforge::cpu
