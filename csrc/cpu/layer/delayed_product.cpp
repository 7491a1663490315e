// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/layer/delayed_product.h"
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/vec.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <class T> class Delayed {
  using V = Vec<T>;
  static constexpr std::int64_t lanes = V::lanes;
  // The number of vectors that stay in registers: AVX-512 has 32 registers, the other sets 16.
  static constexpr int tile = vector_bytes == 64 ? 16 : 8;
  static_assert(tile <= delayed_tile);
  // The elements of a row whose products are summed at once.
  static constexpr std::int64_t chunk = 128 * lanes;
  // The size of the rows of `in` that stay in the first-level cache, where they are read repeatedly.
  static constexpr std::int64_t cache_bytes = 28 << 10;

 public:
  static void add(const DelayedProduct& p, std::int64_t row, std::int64_t last_row, std::int64_t begin,
                  std::int64_t end) {
    for (std::int64_t j = begin; j < end;) j += add_some<tile>(p, row, last_row, j, (end - j) / lanes) * lanes;
  }

  static void sums(const DelayedSums& s, std::int64_t row, std::int64_t last_row) {
    if (s.steps != nullptr) return sums_of_listed(s, row, last_row);
    const DelayedProduct& p = s.product;
    const std::int64_t block = columns_at_once(p, chunk);
    for (std::int64_t j = 0; j < s.length; j += chunk) {
      const std::int64_t count = s.length - j < chunk ? s.length - j : chunk;
      for (std::int64_t c = 0; c < p.columns; c += block)
        sums_of_block(s, row, last_row, c, c + block < p.columns ? c + block : p.columns, j, count);
    }
  }

 private:
  static std::int64_t columns_at_once(const DelayedProduct& p, std::int64_t numbers) {
    const std::int64_t fit = cache_bytes / ((numbers + p.reach) * static_cast<std::int64_t>(sizeof(T)));
    return fit < 1 ? 1 : fit;
  }

  // Processes the vectors that fit into registers; returns their number.
  template <int n>
  static std::int64_t add_some(const DelayedProduct& p, std::int64_t row, std::int64_t last_row, std::int64_t j,
                               std::int64_t vectors) {
    if constexpr (n > 1)
      if (vectors < n) return add_some<n / 2>(p, row, last_row, j, vectors);
    const std::int64_t block = columns_at_once(p, n * lanes);
    for (std::int64_t c = 0; c < p.columns; c += block)
      for (std::int64_t r = row; r < last_row; ++r)
        (p.taps == 2 ? add_columns<n, 2> : add_columns<n, 0>)(p, r, c, c + block < p.columns ? c + block : p.columns,
                                                              j);
    return n;
  }

  // `known`: the number of taps at compile time, or 0.
  template <int n, int known>
  static void add_columns(const DelayedProduct& p, std::int64_t r, std::int64_t c, std::int64_t last, std::int64_t j) {
    const std::int64_t taps = known > 0 ? known : p.taps;
    T* const out = static_cast<T*>(p.out) + r * p.out_stride + j;
    const T* coefficients = static_cast<const T*>(p.coefficients) + (r * p.columns + c) * taps;
    const std::int32_t* const shifts = p.shifts + r * p.columns;
    // The data of the next row is too far away for the hardware prefetcher.
    __builtin_prefetch(coefficients + 2 * p.columns * taps);
    __builtin_prefetch(shifts + 2 * p.columns + c);
    V sum[n];
    for (int v = 0; v < n; ++v) sum[v] = load_row<T>(out + v * lanes);
    const T* row = static_cast<const T*>(p.in) + c * p.in_stride + j;
    do {
      const T* in = row + shifts[c];
      for (std::int64_t tap = 0; tap < taps; ++tap, in += p.lanes) {
        const V coefficient(static_cast<double>(*coefficients++));
        for (int v = 0; v < n; ++v) sum[v] = fma(coefficient, load_row<T>(in + v * lanes), sum[v]);
      }
      row += p.in_stride;
    } while (++c < last);
    for (int v = 0; v < n; ++v) store_row<T>(out + v * lanes, sum[v]);
  }

  static void sums_of_block(const DelayedSums& s, std::int64_t row, std::int64_t last_row, std::int64_t first,
                            std::int64_t last, std::int64_t j, std::int64_t count) {
    const DelayedProduct& p = s.product;
    for (std::int64_t r = row; r < last_row; ++r) {
      const T* const of = static_cast<const T*>(s.of) + r * s.of_stride + j;
      for (std::int64_t c = first; c < last; ++c) {
        const T* const in = static_cast<const T*>(p.in) + c * p.in_stride + p.shifts[r * p.columns + c] + j;
        T* const sum = static_cast<T*>(s.sums) + (r * p.columns + c) * p.taps;
        std::int64_t tap = 0;
        for (; tap + 2 <= p.taps; tap += 2)
          p.lanes == lanes ? add_two<true>(of, in + tap * p.lanes, p.lanes, count, sum + tap)
                           : add_two<false>(of, in + tap * p.lanes, p.lanes, count, sum + tap);
        if (tap < p.taps) sum[tap] += product(of, in + tap * p.lanes, count);
      }
    }
  }

  // Computes the sums over only the listed steps, in which `in` is not zero.
  static void sums_of_listed(const DelayedSums& s, std::int64_t row, std::int64_t last_row) {
    const DelayedProduct& p = s.product;
    for (std::int64_t c = 0; c < p.columns; ++c) {
      const T* const in = static_cast<const T*>(p.in) + c * p.in_stride;
      const std::uint16_t* const steps = s.steps + c * s.steps_stride;
      const std::int64_t count = s.step_counts[c];
      for (std::int64_t r = row; r < last_row; ++r) {
        const T* of = static_cast<const T*>(s.of) + r * s.of_stride - p.shifts[r * p.columns + c];
        T* const sum = static_cast<T*>(s.sums) + (r * p.columns + c) * p.taps;
        std::int64_t tap = 0;
        for (; tap + 2 <= p.taps; tap += 2, of -= 2 * lanes) {
          V a[2] = {V(0), V(0)}, b[2] = {V(0), V(0)};
          std::int64_t k = 0;
          const auto add = [&](int i, std::int64_t at) {
            const V x = load_row<T>(in + at);
            a[i] = fma(load_row<T>(of + at), x, a[i]);
            b[i] = fma(load_row<T>(of + at - lanes), x, b[i]);
          };
          for (; k + 2 <= count; k += 2) {
            add(0, steps[k] * lanes);
            add(1, steps[k + 1] * lanes);
          }
          if (k < count) add(0, steps[k] * lanes);
          sum[tap] += sum_of(a[0] + a[1]);
          sum[tap + 1] += sum_of(b[0] + b[1]);
        }
        if (tap == p.taps) continue;
        V a(0);
        for (std::int64_t k = 0; k < count; ++k)
          a = fma(load_row<T>(of + steps[k] * lanes), load_row<T>(in + steps[k] * lanes), a);
        sum[tap] += sum_of(a);
      }
    }
  }

  // Sums for two neighbouring taps; the second reads a step later. `next`: a step is one vector, so that each vector is
  // read once.
  template <bool next> static void add_two(const T* of, const T* in, std::int64_t step, std::int64_t count, T* to) {
    constexpr int ways = 4;  // independent sums, so that additions do not wait for each other
    V a[ways], b[ways];
    for (int i = 0; i < ways; ++i) a[i] = b[i] = V(0);
    V now = load_row<T>(in);
    std::int64_t j = 0;
    for (; j + ways * lanes <= count; j += ways * lanes) {
      for (int i = 0; i < ways; ++i) {
        const T* const here = in + j + i * lanes;
        const V g = load_row<T>(of + j + i * lanes), later = load_row<T>(here + step);
        a[i] = fma(g, next ? now : load_row<T>(here), a[i]);
        b[i] = fma(g, later, b[i]);
        now = later;
      }
    }
    for (; j < count; j += lanes) {
      const V g = load_row<T>(of + j);
      a[0] = fma(g, load_row<T>(in + j), a[0]);
      b[0] = fma(g, load_row<T>(in + j + step), b[0]);
    }
    to[0] += sum_of((a[0] + a[1]) + (a[2] + a[3]));
    to[1] += sum_of((b[0] + b[1]) + (b[2] + b[3]));
  }

  static T product(const T* of, const T* in, std::int64_t count) {
    V sum(0);
    for (std::int64_t j = 0; j < count; j += lanes) sum = fma(load_row<T>(of + j), load_row<T>(in + j), sum);
    return sum_of(sum);
  }

  static T sum_of(V v) { return sum_of_lanes<lanes>(v.value); }

  template <int n> static T sum_of_lanes(Lanes<T, n> v) {
    if constexpr (n == 1) {
      return v[0];
    } else {
      Lanes<T, n / 2> halves[2];
      std::memcpy(halves, &v, sizeof v);
      return sum_of_lanes<n / 2>(halves[0] + halves[1]);
    }
  }
};

void add(const DelayedProduct& p, DType type, std::int64_t row, std::int64_t last_row, std::int64_t begin,
         std::int64_t end) {
  with_arithmetic(type, [&](auto number) { Delayed<decltype(number)>::add(p, row, last_row, begin, end); });
}

void sums(const DelayedSums& s, DType type, std::int64_t row, std::int64_t last_row) {
  with_arithmetic(type, [&](auto number) { Delayed<decltype(number)>::sums(s, row, last_row); });
}

// Transposes a square of vectors: each round exchanges elements of two vectors that are `distance` apart.
template <class T> class Square {
  using V = Vec<T>;

 public:
  static constexpr int size = V::lanes;

  template <int distance = size / 2> static void turn(V* rows) {
    for (int i = 0; i < size; ++i) {
      if ((i & distance) != 0) continue;
      const auto a = rows[i].value, b = rows[i + distance].value;
      rows[i] = merged<distance, true>(a, b, std::make_index_sequence<size>());
      rows[i + distance] = merged<distance, false>(a, b, std::make_index_sequence<size>());
    }
    if constexpr (distance > 1) turn<distance / 2>(rows);
  }

 private:
  using Simd = typename V::Simd;

  template <int distance, bool low, std::size_t... lane>
  static Simd merged(Simd a, Simd b, std::index_sequence<lane...>) {
    return __builtin_shufflevector(a, b, index<distance, low>(lane)...);
  }

  template <int distance, bool low> static constexpr int index(std::size_t at) {
    const int lane = static_cast<int>(at);
    const bool of_second = (lane & distance) != 0;
    if (low) return of_second ? size + lane - distance : lane;
    return of_second ? size + lane : lane + distance;
  }
};

template <class Element> class Sequence {
  using T = Compute<Element>;
  static constexpr std::int64_t lanes = Vec<T>::lanes;

 public:
  static void to_rows(const SequenceRows& s, const Element* x, T* rows) {
    each(
        s, [&](std::int64_t in_x, std::int64_t in_row) { rows[in_row] = static_cast<T>(x[in_x]); },
        [&](std::int64_t in_x, std::int64_t in_row) {
          Vec<T> square[lanes];
          for (int i = 0; i < lanes; ++i) square[i] = load_row<T>(x + in_x + i * s.features);
          Square<T>::turn(square);
          for (int i = 0; i < lanes; ++i) store_row<T>(rows + in_row + i * s.stride, square[i]);
        });
  }

  static void from_rows(const SequenceRows& s, const T* rows, Element* x) {
    each(
        s, [&](std::int64_t in_x, std::int64_t in_row) { x[in_x] = static_cast<Element>(rows[in_row]); },
        [&](std::int64_t in_x, std::int64_t in_row) {
          Vec<T> square[lanes];
          for (int i = 0; i < lanes; ++i) square[i] = load_row<T>(rows + in_row + i * s.stride);
          Square<T>::turn(square);
          for (int i = 0; i < lanes; ++i) store_row<T>(x + in_x + i * s.features, square[i]);
        });
  }

 private:
  // Calls f(index in the sequence, index in the rows) for each element, or `of_square` for a square of samples and
  // features.
  template <class F, class OfSquare> static void each(const SequenceRows& s, F&& f, OfSquare&& of_square) {
    const std::int64_t whole = s.count == lanes && s.lanes == lanes ? s.features / lanes * lanes : 0;
    for (std::int64_t t = 0; t < s.steps; ++t) {
      const std::int64_t in_x = (t * s.samples + s.first) * s.features, in_row = t * s.lanes;
      for (std::int64_t c = 0; c < whole; c += lanes) of_square(in_x + c, c * s.stride + in_row);
      for (std::int64_t i = 0; i < s.count; ++i)
        for (std::int64_t c = whole; c < s.features; ++c) f(in_x + i * s.features + c, c * s.stride + in_row + i);
    }
  }
};

void to_rows(const SequenceRows& s, DType type, const void* x, void* rows) {
  with_element(type, [&](auto element) {
    using Element = decltype(element);
    Sequence<Element>::to_rows(s, static_cast<const Element*>(x), static_cast<Compute<Element>*>(rows));
  });
}

void from_rows(const SequenceRows& s, DType type, const void* rows, void* x) {
  with_element(type, [&](auto element) {
    using Element = decltype(element);
    Sequence<Element>::from_rows(s, static_cast<const Compute<Element>*>(rows), static_cast<Element*>(x));
  });
}

template <class T> std::int64_t list_of(const T* row, std::int64_t steps, std::uint16_t* list) {
  using V = Vec<T>;
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < steps; ++t) {
    const auto differs = load_row<T>(row + t * V::lanes).value != typename V::Simd{};
    std::uint64_t words[sizeof differs / 8];
    std::memcpy(words, &differs, sizeof differs);
    std::uint64_t any = 0;
    for (const std::uint64_t word : words) any |= word;
    list[count] = static_cast<std::uint16_t>(t);
    count += any != 0;
  }
  return count;
}

std::int64_t list(DType type, const void* row, std::int64_t steps, std::uint16_t* list) {
  return type == DType::f64 ? list_of(static_cast<const double*>(row), steps, list)
                            : list_of(static_cast<const float*>(row), steps, list);
}

constexpr DelayedKernels kernels{vector_bytes, add, sums, list, to_rows, from_rows};

}  // namespace
}  // namespace CPU_CAPABILITY

const DelayedKernels& SPIKEFORGE_OF_SET(delayed_kernels)() { return kernels; }

}  // namespace spikeforge::cpu
