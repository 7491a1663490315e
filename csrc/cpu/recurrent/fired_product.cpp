// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/recurrent/fired_product.h"
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/layer/spike_bits.h"
#include "csrc/cpu/vec.h"

#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

template <class Stored> class Fired {
  using T = Compute<Stored>;
  using V = Vec<T>;
  static constexpr std::int64_t columns = fired_panel_bytes / static_cast<std::int64_t>(sizeof(T));
  static constexpr int vectors = static_cast<int>(columns) / V::lanes;
  // The number of rows to prefetch: rows are far apart, so hardware prefetchers do not predict them.
  static constexpr std::int64_t rows_ahead = 12;

 public:
  static std::int64_t list(const FiredProduct& product, DType type, const Stored* spikes, std::int64_t begin,
                           std::int64_t end) {
    std::int64_t total = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      std::int32_t* const fired = product.fired + r * product.width;
      std::int32_t count = 0;
      for (std::int64_t i = 0; i < product.width; i += 64) {
        const std::int64_t n = product.width - i < 64 ? product.width - i : 64;
        std::uint8_t bits[8] = {};
        if (!spike_bits().pack(spikes + r * product.width + i, type, n, 1, bits)) return -1;
        std::uint64_t word;
        std::memcpy(&word, bits, sizeof word);
        for (; word != 0; word &= word - 1) fired[count++] = static_cast<std::int32_t>(i) + __builtin_ctzll(word);
      }
      product.counts[r] = count;
      total += count;
    }
    return total;
  }

  static void add(const FiredProduct& product, std::int64_t column, T* panel) {
    const std::int64_t width = product.width, count = columns < width - column ? columns : width - column;
    read_panel(product, column, count, panel);
    T* const to = static_cast<T*>(product.product) + column;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::uint16_t* const when = product.when + i * product.rows;
      V sum[vectors];
      for (V& each : sum) each = V(0);
      for (std::int32_t k = 0; k < product.times[i]; ++k) {
        const T* const row = panel + when[k] * columns;
        for (int v = 0; v < vectors; ++v) sum[v] = sum[v] + load_row<T>(row + v * V::lanes);
      }
      T sums[columns];
      for (int v = 0; v < vectors; ++v) store_row<T>(sums + v * V::lanes, sum[v]);
      for (std::int64_t j = 0; j < count; ++j) to[i * width + j] += sums[j];
    }
  }

 private:
  // Copies `count` columns of all rows to the panel, row by row, in the compute type.
  static void read_panel(const FiredProduct& product, std::int64_t column, std::int64_t count, T* panel) {
    const Stored* const gradients = static_cast<const Stored*>(product.gradients) + column;
    for (std::int64_t r = 0; r < product.rows; ++r) {
      const Stored* row = gradients + r * product.width;
      for (std::int64_t at = 0; at < count; at += 64 / static_cast<std::int64_t>(sizeof(Stored)))
        __builtin_prefetch(row + rows_ahead * product.width + at);
      Stored padded[columns];
      if (count < columns) {
        std::memset(static_cast<void*>(padded), 0, sizeof padded);
        std::memcpy(static_cast<void*>(padded), row, static_cast<std::size_t>(count) * sizeof(Stored));
        row = padded;
      }
      for (int v = 0; v < vectors; ++v)
        store_row<T>(panel + r * columns + v * V::lanes, load_row<T>(row + v * V::lanes));
    }
  }
};

std::int64_t list(const FiredProduct& product, DType type, const void* spikes, std::int64_t begin, std::int64_t end) {
  return with_element(type, [&](auto stored) {
    using Stored = decltype(stored);
    return Fired<Stored>::list(product, type, static_cast<const Stored*>(spikes), begin, end);
  });
}

void turn(const FiredProduct& product) {
  std::memset(product.times, 0, static_cast<std::size_t>(product.width) * sizeof(std::int32_t));
  for (std::int64_t r = 0; r < product.rows; ++r)
    for (std::int32_t k = 0; k < product.counts[r]; ++k) {
      const std::int64_t i = product.fired[r * product.width + k];
      product.when[i * product.rows + product.times[i]++] = static_cast<std::uint16_t>(r);
    }
}

void add(const FiredProduct& product, DType type, std::int64_t column, void* panel) {
  with_element(type, [&](auto stored) {
    using Stored = decltype(stored);
    Fired<Stored>::add(product, column, static_cast<Compute<Stored>*>(panel));
  });
}

constexpr FiredKernels kernels{list, turn, add};

}  // namespace
}  // namespace CPU_CAPABILITY

const FiredKernels& SPIKEFORGE_OF_SET(fired_kernels)() { return kernels; }

}  // namespace spikeforge::cpu
