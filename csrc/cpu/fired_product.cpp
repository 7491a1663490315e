// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include <spikeforge/cpu/element_type.h>
#include <spikeforge/cpu/fired_product.h>
#include <spikeforge/cpu/vec.h>

#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <class Stored>
class Fired {
  using T = Compute<Stored>;
  using V = Vec<T>;
  static constexpr std::int64_t columns = fired_panel_bytes / static_cast<std::int64_t>(sizeof(T));
  static constexpr int vectors = static_cast<int>(columns) / V::lanes;
  // Rows lie far apart: no processor guesses them.
  static constexpr std::int64_t rows_ahead = 12;

 public:
  static std::int64_t list(const FiredProduct& product, const Stored* spikes, std::int64_t begin, std::int64_t end) {
    std::int64_t total = 0;
    bool all_legal = true;
    for (std::int64_t r = begin; r < end; ++r) {
      const Stored* const row = spikes + r * product.width;
      std::int32_t* const fired = product.fired + r * product.width;
      std::int32_t count = 0;
      for (std::int64_t i = 0; i < product.width; ++i) {
        const auto number = static_cast<T>(row[i]);
        fired[count] = static_cast<std::int32_t>(i);
        count += number != T(0) ? 1 : 0;
        all_legal &= number == T(0) || number == T(1);
      }
      product.counts[r] = count;
      total += count;
    }
    return all_legal ? total : -1;
  }

  static void add(const FiredProduct& product, std::int64_t column, T* sums) {
    const std::int64_t width = product.width, count = columns < width - column ? columns : width - column;
    std::memset(sums, 0, static_cast<std::size_t>(width * columns) * sizeof(T));
    const Stored* const gradients = static_cast<const Stored*>(product.gradients) + column;
    for (std::int64_t r = 0; r < product.rows; ++r) {
      const Stored* const row = gradients + r * width;
      for (std::int64_t at = 0; at < count; at += 64 / static_cast<std::int64_t>(sizeof(Stored)))
        __builtin_prefetch(row + rows_ahead * width + at);
      V gradient[vectors];
      load(row, count, gradient);
      const std::int32_t* const fired = product.fired + r * width;
      for (std::int32_t k = 0; k < product.counts[r]; ++k) {
        T* const sum = sums + fired[k] * columns;
        for (int v = 0; v < vectors; ++v)
          store_row<T>(sum + v * V::lanes, load_row<T>(sum + v * V::lanes) + gradient[v]);
      }
    }
    T* const to = static_cast<T*>(product.product) + column;
    for (std::int64_t i = 0; i < width; ++i)
      for (std::int64_t j = 0; j < count; ++j) to[i * width + j] += sums[i * columns + j];
  }

 private:
  static void load(const Stored* row, std::int64_t count, V (&gradient)[vectors]) {
    Stored padded[columns];
    if (count < columns) {
      std::memset(static_cast<void*>(padded), 0, sizeof padded);
      std::memcpy(static_cast<void*>(padded), row, static_cast<std::size_t>(count) * sizeof(Stored));
      row = padded;
    }
    for (int v = 0; v < vectors; ++v) gradient[v] = load_row<T>(row + v * V::lanes);
  }
};

std::int64_t list(const FiredProduct& product, DType type, const void* spikes, std::int64_t begin, std::int64_t end) {
  return with_element(type, [&](auto stored) {
    using Stored = decltype(stored);
    return Fired<Stored>::list(product, static_cast<const Stored*>(spikes), begin, end);
  });
}

void add(const FiredProduct& product, DType type, std::int64_t column, void* sums) {
  with_element(type, [&](auto stored) {
    using Stored = decltype(stored);
    Fired<Stored>::add(product, column, static_cast<Compute<Stored>*>(sums));
  });
}

constexpr FiredKernels kernels{list, add};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const FiredKernels& fired_kernels_avx512() { return kernels; }
#elif defined(CPU_CAPABILITY_AVX2)
const FiredKernels& fired_kernels_avx2() { return kernels; }
#else
const FiredKernels& fired_kernels_default() { return kernels; }
#endif

}  // namespace spikeforge::cpu
