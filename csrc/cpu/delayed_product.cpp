// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include <spikeforge/cpu/delayed_product.h>
#include <spikeforge/cpu/element_type.h>
#include <spikeforge/cpu/vec.h>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <class T>
class Delayed {
  using V = Vec<T>;
  static constexpr std::int64_t lanes = V::lanes;
  // Vectors that stay in registers, of which AVX-512 has 32 and the others 16.
  static constexpr int tile = vector_bytes == 64 ? 16 : 8;
  static_assert(tile <= delayed_tile);
  // Numbers of a row whose products are summed at once.
  static constexpr std::int64_t chunk = 64 * lanes;
  // What rows of `in` are read again and again stays in the first-level cache.
  static constexpr std::int64_t cache_bytes = 20 << 10;

 public:
  static void add(const DelayedProduct& p, std::int64_t row, std::int64_t last_row, std::int64_t begin,
                  std::int64_t end) {
    for (std::int64_t j = begin; j < end;) j += add_some<tile>(p, row, last_row, j, (end - j) / lanes) * lanes;
  }

  static void sums(const DelayedSums& s, std::int64_t row, std::int64_t last_row) {
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

  // As many vectors as fit into registers; how many these were.
  template <int n>
  static std::int64_t add_some(const DelayedProduct& p, std::int64_t row, std::int64_t last_row, std::int64_t j,
                               std::int64_t vectors) {
    if constexpr (n > 1)
      if (vectors < n) return add_some<n / 2>(p, row, last_row, j, vectors);
    const std::int64_t block = columns_at_once(p, n * lanes);
    for (std::int64_t c = 0; c < p.columns; c += block)
      for (std::int64_t r = row; r < last_row; ++r)
        add_columns<n>(p, r, c, c + block < p.columns ? c + block : p.columns, j);
    return n;
  }

  template <int n>
  static void add_columns(const DelayedProduct& p, std::int64_t r, std::int64_t c, std::int64_t last, std::int64_t j) {
    T* const out = static_cast<T*>(p.out) + r * p.out_stride + j;
    const T* coefficients = static_cast<const T*>(p.coefficients) + (r * p.columns + c) * p.taps;
    V sum[n];
    for (int v = 0; v < n; ++v) sum[v] = load_row<T>(out + v * lanes);
    for (; c < last; ++c) {
      const T* in = static_cast<const T*>(p.in) + c * p.in_stride + p.shifts[r * p.columns + c] + j;
      for (std::int64_t tap = 0; tap < p.taps; ++tap, in += p.lanes) {
        const V coefficient(static_cast<double>(*coefficients++));
        for (int v = 0; v < n; ++v) sum[v] = fma(coefficient, load_row<T>(in + v * lanes), sum[v]);
      }
    }
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

  // Sums of two neighbouring taps, that of the second from a step later. `next`: which is the next vector, so that each
  // is read once.
  template <bool next>
  static void add_two(const T* of, const T* in, std::int64_t step, std::int64_t count, T* to) {
    constexpr int ways = 4;  // so that additions do not wait for each other
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

  static T sum_of(V v) {
    T parts[lanes];
    store_row<T>(parts, v);
    for (std::int64_t half = lanes / 2; half > 0; half /= 2)
      for (std::int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0];
  }
};

void add(const DelayedProduct& p, DType type, std::int64_t row, std::int64_t last_row, std::int64_t begin,
         std::int64_t end) {
  type == DType::f64 ? Delayed<double>::add(p, row, last_row, begin, end)
                     : Delayed<float>::add(p, row, last_row, begin, end);
}

void sums(const DelayedSums& s, DType type, std::int64_t row, std::int64_t last_row) {
  type == DType::f64 ? Delayed<double>::sums(s, row, last_row) : Delayed<float>::sums(s, row, last_row);
}

// Features at once: a line of each of their rows stays in the cache until it is full.
constexpr std::int64_t features_at_once = 16;

template <class F>
void each_block(const SequenceRows& s, F&& f) {
  for (std::int64_t begin = 0; begin < s.features; begin += features_at_once) {
    const std::int64_t end = begin + features_at_once < s.features ? begin + features_at_once : s.features;
    for (std::int64_t t = 0; t < s.steps; ++t)
      for (std::int64_t i = 0; i < s.count; ++i)
        for (std::int64_t c = begin; c < end; ++c)
          f((t * s.samples + s.first + i) * s.features + c, c * s.stride + t * s.lanes + i);
  }
}

void to_rows(const SequenceRows& s, DType type, const void* x, void* rows) {
  with_element(type, [&](auto element) {
    using Element = decltype(element);
    const auto* const from = static_cast<const Element*>(x);
    auto* const to = static_cast<Compute<Element>*>(rows);
    each_block(s, [&](std::int64_t in_x, std::int64_t in_row) { to[in_row] = static_cast<Compute<Element>>(from[in_x]); });
  });
}

void from_rows(const SequenceRows& s, DType type, const void* rows, void* x) {
  with_element(type, [&](auto element) {
    using Element = decltype(element);
    const auto* const from = static_cast<const Compute<Element>*>(rows);
    auto* const to = static_cast<Element*>(x);
    each_block(s, [&](std::int64_t in_x, std::int64_t in_row) { to[in_x] = static_cast<Element>(from[in_row]); });
  });
}

constexpr DelayedKernels kernels{vector_bytes, add, sums, to_rows, from_rows};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const DelayedKernels& delayed_kernels_avx512() { return kernels; }
#elif defined(CPU_CAPABILITY_AVX2)
const DelayedKernels& delayed_kernels_avx2() { return kernels; }
#else
const DelayedKernels& delayed_kernels_default() { return kernels; }
#endif

}  // namespace spikeforge::cpu
