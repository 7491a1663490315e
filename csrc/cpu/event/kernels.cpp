// Short names: C type of the arithmetic; W type of a weight; F type of a function.
#include "csrc/cpu/event/kernels.h"
#include "csrc/cpu/element_type.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#define SPIKEFORGE_WORDS_OF_EIGHT
#include <immintrin.h>
#endif

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

using event::Ring;
using event::Rows;
using event::Values;
using event::Weights;

bool is_event(const std::uint32_t* bits, std::int32_t i) {
  const auto at = static_cast<std::uint32_t>(i);
  return (bits[at >> 5] >> (at & 31) & 1) != 0;
}

// Returns x if the entry is an event, and 0 otherwise, for any x. It has no branch: with one event in ten entries, it
// would often be mispredicted.
template <class C> C where_event(const std::uint32_t* bits, std::int32_t i, C x) {
  using Bits = std::conditional_t<sizeof(C) == 8, std::uint64_t, std::uint32_t>;
  return std::bit_cast<C>(std::bit_cast<Bits>(x) & (Bits(0) - static_cast<Bits>(is_event(bits, i))));
}

#if defined(SPIKEFORGE_WORDS_OF_EIGHT)
// Returns the words that contain eight entries, loaded one by one: 12.5 M connections take 4.5 ms on a Zen 3 core, and
// 6.3 with the gather instruction; on a Zen 4 core 3.7, and 5.5 with the gather instruction of AVX-512.
__m256i words_of(const std::int32_t* columns, const std::uint32_t* bits) {
  const auto word = [=](int k) { return static_cast<int>(bits[static_cast<std::uint32_t>(columns[k]) >> 5]); };
  return _mm256_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7));
}
#endif

// ---- one vector, by rows ----

std::int64_t count_events(const std::int32_t* columns, std::int64_t n, const std::uint32_t* bits) {
  std::int64_t k = 0;
  std::int64_t count = 0;
#if defined(SPIKEFORGE_WORDS_OF_EIGHT)
  const __m256i low = _mm256_set1_epi32(31);
  const __m256i one = _mm256_set1_epi32(1);
  __m256i counts = _mm256_setzero_si256();
  for (; k + 8 <= n; k += 8) {
    const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns + k));
    const __m256i words = words_of(columns + k, bits);
    counts = _mm256_add_epi32(counts, _mm256_and_si256(_mm256_srlv_epi32(words, _mm256_and_si256(at, low)), one));
  }
  alignas(32) std::uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), counts);
  for (const std::uint32_t lane : lanes) count += lane;
#endif
  for (; k < n; ++k) count += is_event(bits, columns[k]) ? 1 : 0;
  return count;
}

template <class C> C sum_of_places(const C* sums) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Sums in eight accumulators, so that consecutive additions do not depend on each other.
template <class C, class Term> C sum_of(std::int64_t n, Term&& term) {
  constexpr int places = 8;
  C sums[places] = {};
  std::int64_t k = 0;
  for (; k + places <= n; k += places)
    for (int p = 0; p < places; ++p) sums[p] += term(k + p);
  for (int p = 0; k < n; ++k, ++p) sums[p] += term(k);
  return sum_of_places(sums);
}

// Sums the weights of events. Weights of other entries do not enter the sum, even if they are NaN.
template <class W>
Compute<W> sum_of_weights(const std::int32_t* columns, const W* weights, std::int64_t n, const std::uint32_t* bits) {
#if defined(SPIKEFORGE_WORDS_OF_EIGHT)
  if constexpr (std::is_same_v<W, float>) {
    const __m256i low = _mm256_set1_epi32(31);
    __m256 sums = _mm256_setzero_ps();
    std::int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
      const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns + k));
      const __m256i to_sign = _mm256_sub_epi32(low, _mm256_and_si256(at, low));
      const __m256i events = _mm256_srai_epi32(_mm256_sllv_epi32(words_of(columns + k, bits), to_sign), 31);
      sums = _mm256_add_ps(sums, _mm256_and_ps(_mm256_loadu_ps(weights + k), _mm256_castsi256_ps(events)));
    }
    alignas(32) float places[8];
    _mm256_store_ps(places, sums);
    for (int p = 0; k < n; ++k, ++p) places[p] += where_event(bits, columns[k], weights[k]);
    return sum_of_places(places);
  }
#endif
  using C = Compute<W>;
  return sum_of<C>(n, [&](std::int64_t k) { return where_event(bits, columns[k], static_cast<C>(weights[k])); });
}

// Returns the result of a row with a homogeneous weight: zero without contributions, for any weight.
template <class W, class Sum> W weighted(W weight, Sum sum, Values values) {
  using C = Compute<W>;
  if (values != Values::number && sum == 0) return W(C(0));
  if constexpr (std::is_integral_v<Sum>)
    return static_cast<W>(static_cast<C>(static_cast<double>(static_cast<C>(weight)) * static_cast<double>(sum)));
  else
    return static_cast<W>(static_cast<C>(weight) * sum);
}

template <class W>
void gather_typed(const Rows& matrix, const Weights& weights, const Prepared& x, std::int64_t begin, std::int64_t end,
                  W* y, std::int64_t y_stride) {
  using C = Compute<W>;
  const auto* const w = static_cast<const W*>(weights.data);
  const auto* const entries = static_cast<const C*>(x.entries);
  std::int64_t next = matrix.begin(begin);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t first = next;
    next = matrix.end(i);
    const std::int32_t* const columns = matrix.indices + first;
    const std::int64_t n = next - first;
    W& result = y[i * y_stride];
    if (x.values == Values::event) {
      if (weights.homogeneous)
        result = weighted(w[0], count_events(columns, n, x.bits), x.values);
      else
        result = static_cast<W>(sum_of_weights(columns, w + first, n, x.bits));
    } else if (weights.homogeneous) {
      result = weighted(w[0], sum_of<C>(n, [&](std::int64_t k) { return entries[columns[k]]; }), x.values);
    } else if (x.values == Values::graded) {
      result = static_cast<W>(sum_of<C>(n, [&](std::int64_t k) {
        const C entry = entries[columns[k]];
        return entry > 0 ? entry * static_cast<C>(w[first + k]) : C(0);
      }));
    } else {
      result = static_cast<W>(
          sum_of<C>(n, [&](std::int64_t k) { return entries[columns[k]] * static_cast<C>(w[first + k]); }));
    }
  }
}

void gather(const Rows& matrix, const Weights& weights, const Prepared& x, std::int64_t begin, std::int64_t end,
            void* y, std::int64_t y_stride) {
  with_element(weights.type,
               [&](auto w) { gather_typed(matrix, weights, x, begin, end, static_cast<decltype(w)*>(y), y_stride); });
}

// ---- one vector, by columns ----

// Nonzeros [first, last) of one row of a share.
struct Piece {
  std::int32_t row = 0;
  std::int64_t first = 0, last = 0;
};

constexpr std::int64_t nonzeros_of_a_line = 16;
constexpr int rows_together = 16;

// Several pieces, at arbitrary positions.
struct Pieces {
  Piece of[rows_together];
  int count = 0;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();

  // Reads the next pieces of the share, starting at row `a` of its list.
  void read(const Share& share, std::int64_t& a) {
    *this = {};
    for (; count < rows_together && a < share.count && share.starts[a] < share.last; ++count, ++a) {
      const std::int64_t before = share.starts[a];
      const std::int64_t begin = share.begins[a] - before;
      const std::int64_t first = begin + std::max(share.first, before);
      const std::int64_t last = begin + std::min(share.starts[a + 1], share.last);
      of[count] = {share.rows[a], first, last};
      shortest = std::min(shortest, last - first);
    }
  }
};

// Prefetches the next pieces, one cache line at a time, in memory order.
template <class Fetch> class Lines {
 public:
  Lines(const Pieces& pieces, Fetch& fetch) : pieces_(pieces), fetch_(fetch) {
    for (int p = 0; p < pieces.count; ++p) fetch(pieces.of[p].first);
    enter(0);
  }

  void fetch_one() {
    while (k_ >= last_) {
      if (p_ + 1 >= pieces_.count) return;
      enter(p_ + 1);
    }
    fetch_(k_);
    k_ += nonzeros_of_a_line;
  }

 private:
  void enter(int p) {
    p_ = p;
    k_ = pieces_.of[p].first + nonzeros_of_a_line;
    last_ = pieces_.of[p].last;
  }

  const Pieces& pieces_;
  Fetch& fetch_;
  int p_ = 0;
  std::int64_t k_ = 0, last_ = 0;
};

// Calls add(p, k, column) for the nonzeros k of a share; start(p, row) is called before those of a row. Several pieces
// are processed concurrently, one cache line of each at a time: columns mostly ascend, so the targets of neighbouring
// additions are neighbours in the first-level cache. Meanwhile, `fetch`(k) prefetches the operands of the next
// nonzeros: a hardware prefetcher cannot follow this number of pieces, nor predict the start of the next active row.
// Indices are loaded in pairs.
//
// 12.5 M connections with a weight each on a Zen 4 core: 16 concurrent pieces take 7.6 ms, 8 or 24 take 8.5 to 9, and
// row by row takes 10.1.
template <class Start, class Fetch, class Add>
void for_each_nonzero(const Rows& matrix, const Share& share, Start&& start, Fetch&& fetch, Add&& add) {
  if (share.first >= share.last) return;
  const std::int32_t* const columns = matrix.indices;
  const auto add_line = [&](int p, std::int64_t k) {
    for (std::int64_t i = k; i < k + nonzeros_of_a_line; i += 2) {
      std::uint64_t pair = 0;
      std::memcpy(&pair, columns + i, sizeof pair);
      constexpr bool little = std::endian::native == std::endian::little;
      add(p, i, static_cast<std::uint32_t>(little ? pair : pair >> 32));
      add(p, i + 1, static_cast<std::uint32_t>(little ? pair >> 32 : pair));
    }
  };

  auto a = std::upper_bound(share.starts, share.starts + share.count + 1, share.first) - share.starts - 1;
  Pieces now, next;
  now.read(share, a);
  while (now.count > 0) {
    next.read(share, a);
    Lines lines(next, fetch);
    for (int p = 0; p < now.count; ++p) start(p, now.of[p].row);
    std::int64_t done = 0;
    if (now.count == rows_together)
      for (; done + nonzeros_of_a_line <= now.shortest; done += nonzeros_of_a_line)
        for (int p = 0; p < rows_together; ++p) {
          lines.fetch_one();
          add_line(p, now.of[p].first + done);
        }
    for (int p = 0; p < now.count; ++p) {
      std::int64_t k = now.of[p].first + done;
      for (; k + nonzeros_of_a_line <= now.of[p].last; k += nonzeros_of_a_line) {
        lines.fetch_one();
        add_line(p, k);
      }
      for (; k < now.of[p].last; ++k) add(p, k, static_cast<std::uint32_t>(columns[k]));
    }
    now = next;
  }
}

// Prefetches into the second-level cache, since the first has the sums: 7.6 ms as above, and 8.4 with the first.
template <class T> void fetch_line(const T* data, std::int64_t k) {
  constexpr std::int64_t bytes_of_a_line = 64;
  const char* const from = reinterpret_cast<const char*>(data + k);
  for (std::int64_t b = 0; b < nonzeros_of_a_line * static_cast<std::int64_t>(sizeof(T)); b += bytes_of_a_line)
    __builtin_prefetch(from + b, /*for writing*/ 0, /*locality*/ 2);
}

template <class W>
void scatter_typed(const Rows& matrix, const Weights& weights, const Prepared& x, const Share& share, void* sums) {
  using C = Compute<W>;
  const auto* const w = static_cast<const W*>(weights.data);
  const auto* const columns = matrix.indices;
  const auto nothing = [](int, std::int32_t) {};
  const auto fetch = [=](std::int64_t k) { fetch_line(columns, k); };
  const auto fetch_both = [=](std::int64_t k) {
    fetch_line(columns, k);
    fetch_line(w, k);
  };
  if (x.values == Values::event && weights.homogeneous) {
    auto* const counts = static_cast<std::uint32_t*>(sums);
    for_each_nonzero(matrix, share, nothing, fetch, [=](int, std::int64_t, std::uint32_t column) { ++counts[column]; });
    return;
  }
  auto* const total = static_cast<C*>(sums);
  if (x.values == Values::event) {
    for_each_nonzero(matrix, share, nothing, fetch_both,
                     [=](int, std::int64_t k, std::uint32_t column) { total[column] += static_cast<C>(w[k]); });
    return;
  }
  const auto* const entries = static_cast<const C*>(x.entries);
  C entry[rows_together];
  const auto start = [&](int p, std::int32_t row) { entry[p] = entries[row]; };
  if (weights.homogeneous)
    for_each_nonzero(matrix, share, start, fetch,
                     [&](int p, std::int64_t, std::uint32_t column) { total[column] += entry[p]; });
  else
    for_each_nonzero(matrix, share, start, fetch_both, [&](int p, std::int64_t k, std::uint32_t column) {
      total[column] += entry[p] * static_cast<C>(w[k]);
    });
}

void scatter(const Rows& matrix, const Weights& weights, const Prepared& x, const Share& share, void* sums) {
  with_element(weights.type, [&](auto w) { scatter_typed<decltype(w)>(matrix, weights, x, share, sums); });
}

// ---- to a ring ----

// Calls f(place), where place(k) returns the sums of type C to which nonzero k contributes.
template <class C, class F> void with_places(const Ring& ring, F&& f) {
  const std::int64_t mask = ring.same_delay ? 0 : -1;
  const auto of = [&](const auto* delays) {
    f([=, sums = static_cast<C*>(ring.sums), offsets = ring.offsets](std::int64_t k) {
      return sums + offsets[delays[k & mask]];
    });
  };
  if (ring.wide_delays)
    of(static_cast<const std::int32_t*>(ring.delays));
  else
    of(static_cast<const std::uint8_t*>(ring.delays));
}

void fetch_delays(const Ring& ring, std::int64_t k) {
  if (ring.same_delay) return;
  if (ring.wide_delays)
    fetch_line(static_cast<const std::int32_t*>(ring.delays), k);
  else
    fetch_line(static_cast<const std::uint8_t*>(ring.delays), k);
}

template <class W>
void deliver_typed(const Rows& matrix, const Weights& weights, const Prepared& x, const Share& share,
                   const Ring& ring) {
  using C = Compute<W>;
  const auto* const w = static_cast<const W*>(weights.data);
  const auto* const entries = static_cast<const C*>(x.entries);
  const C shared = weights.homogeneous ? static_cast<C>(w[0]) : C(1);
  C entry[rows_together];
  const auto start = [&](int p, std::int32_t row) {
    entry[p] = x.values == Values::event ? shared : entries[row] * shared;
  };
  const auto fetch = [&](std::int64_t k) {
    fetch_line(matrix.indices, k);
    fetch_delays(ring, k);
    if (!weights.homogeneous) fetch_line(w, k);
  };
  with_places<C>(ring, [&](auto&& place) {
    if (weights.homogeneous)
      for_each_nonzero(matrix, share, start, fetch,
                       [&](int p, std::int64_t k, std::uint32_t column) { place(k)[column] += entry[p]; });
    else
      for_each_nonzero(matrix, share, start, fetch, [&](int p, std::int64_t k, std::uint32_t column) {
        place(k)[column] += entry[p] * static_cast<C>(w[k]);
      });
  });
}

void deliver(const Rows& matrix, const Weights& weights, const Prepared& x, const Share& share, const Ring& ring) {
  with_element(weights.type, [&](auto w) { deliver_typed<decltype(w)>(matrix, weights, x, share, ring); });
}

// The number of pieces to prefetch: pieces of rows in a block of columns may be short, and at arbitrary positions.
constexpr std::int64_t pieces_ahead = 8;

template <class W>
void deliver_columns_typed(const Rows& matrix, const Weights& weights, const Prepared& x, const Columns& columns,
                           const Ring& ring) {
  using C = Compute<W>;
  const auto* const w = static_cast<const W*>(weights.data);
  const auto* const entries = static_cast<const C*>(x.entries);
  const C shared = weights.homogeneous ? static_cast<C>(w[0]) : C(1);
  const auto fetch = [&](std::int64_t k) {
    fetch_line(matrix.indices, k);
    fetch_delays(ring, k);
    if (!weights.homogeneous) fetch_line(w, k);
  };
  const auto walk = [&](auto&& add) {
    for (std::int64_t until = columns.begin; until < columns.end;) {
      until = std::min(until + columns.block, columns.end);
      for (std::int64_t a = 0; a < columns.count; ++a) {
        if (a + pieces_ahead < columns.count) fetch(columns.next[a + pieces_ahead]);
        const std::int64_t last = columns.begins[a] + (columns.starts[a + 1] - columns.starts[a]);
        const C entry = x.values == Values::event ? shared : entries[columns.rows[a]] * shared;
        std::int64_t k = columns.next[a];
        for (; k < last && matrix.indices[k] < until; ++k) add(k, static_cast<std::uint32_t>(matrix.indices[k]), entry);
        columns.next[a] = k;
      }
    }
  };
  with_places<C>(ring, [&](auto&& place) {
    if (weights.homogeneous)
      walk([&](std::int64_t k, std::uint32_t column, C entry) { place(k)[column] += entry; });
    else
      walk([&](std::int64_t k, std::uint32_t column, C entry) { place(k)[column] += entry * static_cast<C>(w[k]); });
  });
}

void deliver_columns(const Rows& matrix, const Weights& weights, const Prepared& x, const Columns& columns,
                     const Ring& ring) {
  with_element(weights.type, [&](auto w) { deliver_columns_typed<decltype(w)>(matrix, weights, x, columns, ring); });
}

template <class W>
void deliver_rows_typed(const Rows& matrix, const Weights& weights, const Prepared& x, std::int64_t begin,
                        std::int64_t end, const Ring& ring) {
  using C = Compute<W>;
  const auto* const w = static_cast<const W*>(weights.data);
  const auto* const entries = static_cast<const C*>(x.entries);
  const std::int64_t mask = weights.homogeneous ? 0 : -1;
  with_places<C>(ring, [&](auto&& place) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k) {
        const std::int32_t column = matrix.indices[k];
        if (x.values == Values::event) {
          if (is_event(x.bits, column)) place(k)[i] += static_cast<C>(w[k & mask]);
        } else if (x.values == Values::number || entries[column] != 0) {
          place(k)[i] += entries[column] * static_cast<C>(w[k & mask]);
        }
      }
  });
}

void deliver_rows(const Rows& matrix, const Weights& weights, const Prepared& x, std::int64_t begin, std::int64_t end,
                  const Ring& ring) {
  with_element(weights.type, [&](auto w) { deliver_rows_typed<decltype(w)>(matrix, weights, x, begin, end, ring); });
}

// Processes one block of columns at a time: first the sums, then their products with the weight, so that both loops are
// vectorised.
template <class W, class Sum>
void finish_typed(const Weights& weights, Values values, const void* sums, std::int64_t parts, std::int64_t part_bytes,
                  std::int64_t begin, std::int64_t end, W* y, std::int64_t y_stride) {
  using C = Compute<W>;
  using Total = std::conditional_t<std::is_integral_v<Sum>, double, Sum>;  // exact beyond 32 bits
  constexpr std::int64_t block = 256;
  const auto weight =
      static_cast<Total>(weights.homogeneous ? static_cast<C>(*static_cast<const W*>(weights.data)) : C(1));
  // Without contributions, the result is 0 for any weight. For finite weights, the product is 0, except for its sign.
  const bool zero_is_nothing =
      weights.homogeneous && values != Values::number && !(std::abs(weight) < std::numeric_limits<Total>::infinity());
  for (std::int64_t first = begin; first < end; first += block) {
    const std::int64_t n = std::min(block, end - first);
    Total totals[block];
    const auto part = [&](std::int64_t p) {
      return reinterpret_cast<const Sum*>(static_cast<const char*>(sums) + p * part_bytes) + first;
    };
    for (std::int64_t j = 0; j < n; ++j) totals[j] = static_cast<Total>(part(0)[j]);
    for (std::int64_t p = 1; p < parts; ++p)
      for (std::int64_t j = 0; j < n; ++j) totals[j] += static_cast<Total>(part(p)[j]);
    const auto store = [&](auto stride) {
      W* const to = y + first * stride;
      if (zero_is_nothing)
        for (std::int64_t j = 0; j < n; ++j)
          to[j * stride] = static_cast<W>(totals[j] == 0 ? C(0) : static_cast<C>(weight * totals[j]));
      else
        for (std::int64_t j = 0; j < n; ++j) to[j * stride] = static_cast<W>(static_cast<C>(weight * totals[j]) + C(0));
    };
    y_stride == 1 ? store(std::integral_constant<std::int64_t, 1>()) : store(y_stride);
  }
}

void finish(const Weights& weights, Values values, const void* sums, std::int64_t parts, std::int64_t part_bytes,
            std::int64_t begin, std::int64_t end, void* y, std::int64_t y_stride) {
  with_element(weights.type, [&](auto w) {
    using W = decltype(w);
    auto* const to = static_cast<W*>(y);
    if (weights.homogeneous && values == Values::event)
      finish_typed<W, std::uint32_t>(weights, values, sums, parts, part_bytes, begin, end, to, y_stride);
    else
      finish_typed<W, Compute<W>>(weights, values, sums, parts, part_bytes, begin, end, to, y_stride);
  });
}

// ---- several vectors ----

// to[v] += weight * entry[v]; with `only_active`, only for positive entries.
template <class C> void add(C* to, const C* entry, C weight, bool only_active, std::int64_t n) {
  if (only_active)
    for (std::int64_t v = 0; v < n; ++v) to[v] += entry[v] > 0 ? weight * entry[v] : C(0);
  else
    for (std::int64_t v = 0; v < n; ++v) to[v] += weight * entry[v];
}

template <class W> struct Many {
  using C = Compute<W>;
  const Rows& matrix;
  const W* weights;
  bool homogeneous;
  bool only_active;  // entries that are not events contribute nothing, for any weight
  const C* entries;
  std::int64_t n;

  C weight(std::int64_t k) const { return homogeneous ? C(1) : static_cast<C>(weights[k]); }

  void store(const C* sums, W* y, const std::int64_t* offsets) const {
    for (std::int64_t v = 0; v < n; ++v) {
      C sum = sums[v];
      if (homogeneous) sum = only_active && sum == 0 ? C(0) : sum * static_cast<C>(weights[0]);
      y[offsets[v]] = static_cast<W>(sum);
    }
  }

  void gather(std::int64_t begin, std::int64_t end, C* sums, W* y, std::int64_t y_stride,
              const std::int64_t* offsets) const {
    for (std::int64_t i = begin; i < end; ++i) {
      std::fill_n(sums, n, C(0));
      for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k)
        add(sums, entries + matrix.indices[k] * n, weight(k), only_active && !homogeneous, n);
      store(sums, y + i * y_stride, offsets);
    }
  }

  void scatter(C* sums, W* y, std::int64_t y_stride, const std::int64_t* offsets) const {
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      const C* const entry = entries + i * n;
      if (only_active && std::all_of(entry, entry + n, [](C e) { return e == 0; })) continue;
      for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k)
        add(sums + matrix.indices[k] * n, entry, weight(k), only_active && !homogeneous, n);
    }
    for (std::int64_t j = 0; j < matrix.cols; ++j) store(sums + j * n, y + j * y_stride, offsets);
  }
};

template <class F>
void with_many(const Rows& matrix, const Weights& weights, Values values, const void* entries, std::int64_t n, F&& f) {
  with_element(weights.type, [&](auto w) {
    using W = decltype(w);
    f(Many<W>{matrix, static_cast<const W*>(weights.data), weights.homogeneous, values != Values::number,
              static_cast<const Compute<W>*>(entries), n},
      w);
  });
}

void gather_many(const Rows& matrix, const Weights& weights, Values values, const void* entries, std::int64_t n,
                 std::int64_t begin, std::int64_t end, void* sums, void* y, std::int64_t y_stride,
                 const std::int64_t* y_offsets) {
  with_many(matrix, weights, values, entries, n, [&](const auto& many, auto w) {
    many.gather(begin, end, static_cast<Compute<decltype(w)>*>(sums), static_cast<decltype(w)*>(y), y_stride,
                y_offsets);
  });
}

void scatter_many(const Rows& matrix, const Weights& weights, Values values, const void* entries, std::int64_t n,
                  void* sums, void* y, std::int64_t y_stride, const std::int64_t* y_offsets) {
  with_many(matrix, weights, values, entries, n, [&](const auto& many, auto w) {
    many.scatter(static_cast<Compute<decltype(w)>*>(sums), static_cast<decltype(w)*>(y), y_stride, y_offsets);
  });
}

void weight_gradient(const Rows& matrix, DType type, Values values, bool transpose, const void* entries, const void* g,
                     std::int64_t n, std::int64_t begin, std::int64_t end, void* grad) {
  with_arithmetic(type, [&]<class C>(C) {
    for (std::int64_t i = begin; i < end; ++i) {
      const C* const own = static_cast<const C*>(entries) + i * n;
      if (transpose && values != Values::number && std::none_of(own, own + n, [](C e) { return e > 0; })) continue;
      for (std::int64_t k = matrix.begin(i); k < matrix.end(i); ++k) {
        const std::int64_t j = matrix.indices[k];
        const C* const entry = static_cast<const C*>(entries) + (transpose ? i : j) * n;
        const C* const upstream = static_cast<const C*>(g) + (transpose ? j : i) * n;
        C& sum = static_cast<C*>(grad)[k];
        if (values == Values::number)
          sum += sum_of<C>(n, [&](std::int64_t v) { return entry[v] * upstream[v]; });
        else
          sum += sum_of<C>(n, [&](std::int64_t v) { return entry[v] > 0 ? entry[v] * upstream[v] : C(0); });
      }
    }
  });
}

// ---- dense weights ----

template <class W> void linear_typed(const LinearSum& sum) {
  using C = Compute<W>;
  constexpr std::int64_t most_columns = 512;
  C sums[most_columns];
  const std::int64_t n = sum.end - sum.begin;
  const auto* const values = static_cast<const C*>(sum.values);
  const auto* const bias = static_cast<const C*>(sum.bias);
  std::fill_n(sums, n, C(0));
  const auto row = [&](std::int64_t a) {
    return static_cast<const W*>(sum.weight) + sum.inputs[a] * sum.out + sum.begin;
  };
  std::int64_t a = 0;
  // Two rows at a time: half as many loads and stores of the sums.
  for (; values == nullptr && a + 2 <= sum.count; a += 2) {
    const W* const first = row(a);
    const W* const second = row(a + 1);
    for (std::int64_t j = 0; j < n; ++j) sums[j] = (sums[j] + static_cast<C>(first[j])) + static_cast<C>(second[j]);
  }
  for (; a < sum.count; ++a) {
    const W* const w = row(a);
    const C value = values == nullptr ? C(1) : values[sum.inputs[a]];
    for (std::int64_t j = 0; j < n; ++j) sums[j] += value * static_cast<C>(w[j]);
  }
  W* const y = static_cast<W*>(sum.y) + sum.begin;
  for (std::int64_t j = 0; j < n; ++j) y[j] = static_cast<W>(bias == nullptr ? sums[j] : sums[j] + bias[sum.begin + j]);
}

void linear(const LinearSum& sum) {
  with_element(sum.type, [&](auto w) { linear_typed<decltype(w)>(sum); });
}

constexpr EventKernels kernels = {gather, scatter,     deliver,      deliver_columns, deliver_rows,
                                  finish, gather_many, scatter_many, weight_gradient, linear};

}  // namespace
}  // namespace CPU_CAPABILITY

const EventKernels& SPIKEFORGE_OF_SET(event_kernels)() { return kernels; }

}  // namespace spikeforge::cpu
