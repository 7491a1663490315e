// Compiled once for each instruction set (CPU_CAPABILITY), under the rules at the top of predefined_loops.cpp.
#include "csrc/cpu/recurrent/feedback.h"
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/vec.h"

#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

// The size of a block of the product, in samples and vectors of columns. Its sums stay in registers.
constexpr int most_samples = 6;
#if defined(CPU_CAPABILITY_AVX512)
constexpr int block_vectors = 4;
#else
constexpr int block_vectors = 2;
#endif

// The share of nonzero received numbers of a block above which all rows are multiplied for all samples at once.
// Otherwise, rows are added separately for each sample.
constexpr std::int64_t dense_share = 3;  // in eighths

template <class T, class Stored> class Product {
  using V = Vec<T>;
  static constexpr int lanes = V::lanes;
  static constexpr std::int64_t panel = panel_bytes / static_cast<std::int64_t>(sizeof(T));
  static constexpr int block = block_vectors * lanes;
  static_assert(panel % block == 0);

  // The received numbers of a block's samples.
  struct FedBackRows {
    T* numbers;           // [most_samples, width]
    std::int32_t* where;  // [most_samples, width]: the indices of those that are not zero
    std::int64_t counts[most_samples];
    std::int64_t count = 0;
  };

 public:
  static std::size_t scratch_bytes(std::int64_t width) {
    return static_cast<std::size_t>(most_samples * width) * (sizeof(T) + sizeof(std::int32_t)) + 64;
  }

  static void run(const Feedback& feedback, std::int64_t t, std::int64_t begin, std::int64_t end, bool is_fed_back,
                  void* scratch) {
    const std::int64_t width = feedback.width, samples = (end - begin) / width;
    Stored* const sum = static_cast<Stored*>(feedback.sum) + t * feedback.sum_stride;
    const Stored* const fed_back = is_fed_back ? fed_back_at(feedback, t - feedback.delay) : nullptr;
    if (fed_back == nullptr) return copy_added(feedback, t, begin, end, sum);
    FedBackRows of_block;
    of_block.numbers = static_cast<T*>(scratch);
    of_block.where = reinterpret_cast<std::int32_t*>(of_block.numbers + most_samples * width);
    // The samples are divided into blocks of about the same size.
    const std::int64_t blocks = (samples + most_samples - 1) / most_samples;
    for (std::int64_t i = 0, b = 0; i < blocks; ++i) {
      const std::int64_t count = (samples - b + blocks - i - 1) / (blocks - i);
      const std::int64_t first = begin + b * width;
      gather(fed_back + first, count, width, of_block);
      const bool dense = of_block.count * 8 > count * width * dense_share;
      if (dense)
        multiply(static_cast<int>(count), feedback, of_block, t, first, sum);
      else
        add_rows(static_cast<int>(count), feedback, of_block, t, first, sum);
      b += count;
    }
  }

 private:
  static const Stored* fed_back_at(const Feedback& feedback, std::int64_t t) {
    if (t >= feedback.steps) return nullptr;
    if (t >= 0) return static_cast<const Stored*>(feedback.fed_back.data) + t * feedback.fed_back.time_stride;
    if (feedback.before.data == nullptr) return nullptr;
    return static_cast<const Stored*>(feedback.before.data) + (t + feedback.delay) * feedback.before.time_stride;
  }

  // ---- added values ----

  // Returns the added values from neuron n on: a vector of which `count` lanes are present.
  static V added_at(const Feedback& feedback, std::int64_t t, std::int64_t n, int count) {
    const SequenceView& view = feedback.added;
    if (view.data == nullptr) return V(0);
    const Stored* const row = static_cast<const Stored*>(view.data) + t * view.time_stride;
    if (view.neuron_stride == 0) return V(static_cast<T>(row[0]));
    if (count == lanes) return load_row<T>(row + n);
    Stored padded[lanes] = {};
    std::memcpy(static_cast<void*>(padded), row + n, static_cast<std::size_t>(count) * sizeof(Stored));
    return load_row<T>(padded);
  }

  static void store(Stored* to, V x, int count) {
    if (count == lanes) return store_row<T>(to, x);
    Stored padded[lanes];
    store_row<T>(padded, x);
    std::memcpy(static_cast<void*>(to), padded, static_cast<std::size_t>(count) * sizeof(Stored));
  }

  static int lanes_left(std::int64_t left) { return left < lanes ? static_cast<int>(left) : lanes; }

  static void copy_added(const Feedback& feedback, std::int64_t t, std::int64_t begin, std::int64_t end, Stored* sum) {
    for (std::int64_t n = begin; n < end; n += lanes) {
      const int count = lanes_left(end - n);
      store(sum + n, added_at(feedback, t, n, count), count);
    }
  }

  // ---- received numbers ----

  static void gather(const Stored* fed_back, std::int64_t samples, std::int64_t width, FedBackRows& of_block) {
    of_block.count = 0;
    for (std::int64_t s = 0; s < samples; ++s) {
      T* const numbers = of_block.numbers + s * width;
      std::int64_t i = 0;
      for (; i + lanes <= width; i += lanes) store_row<T>(numbers + i, load_row<T>(fed_back + s * width + i));
      for (; i < width; ++i) numbers[i] = static_cast<T>(fed_back[s * width + i]);
      of_block.counts[s] = places(numbers, width, of_block.where + s * width);
      of_block.count += of_block.counts[s];
    }
  }

  // Lists the indices of nonzero numbers, and returns their number.
  static std::int64_t places(const T* numbers, std::int64_t width, std::int32_t* where) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      where[count] = static_cast<std::int32_t>(i);
      count += numbers[i] != 0 ? 1 : 0;
    }
    return count;
  }

  // ---- products: with fma, since the sums of other devices have different bits in any case ----

  static const T* panel_of(const Feedback& feedback, std::int64_t column) {
    const std::int64_t index = column / panel, within = column % panel;
    return static_cast<const T*>(feedback.matrix) + index * feedback.width * panel + within;
  }

  // Stores the columns from `column` on. The last vectors may have fewer columns, or none.
  template <int samples>
  static void finish(const Feedback& feedback, const V (&sums)[samples][block_vectors], std::int64_t t,
                     std::int64_t first, std::int64_t column, Stored* sum) {
    const std::int64_t width = feedback.width;
    for (int s = 0; s < samples; ++s)
      for (int v = 0; v < block_vectors; ++v) {
        const std::int64_t at = column + v * lanes;
        if (at >= width) break;
        const int count = lanes_left(width - at);
        const std::int64_t n = first + s * width + at;
        store(sum + n, added_at(feedback, t, n, count) + sums[s][v], count);
      }
  }

  // Adds rows sample by sample within a block of columns, which stays in the cache.
  static void add_rows(int samples, const Feedback& feedback, const FedBackRows& fed_back, std::int64_t t,
                       std::int64_t first, Stored* sum) {
    for (std::int64_t column = 0; column < feedback.width; column += block)
      for (int s = 0; s < samples; ++s) add_block(feedback, fed_back, s, t, first + s * feedback.width, column, sum);
  }

  static void add_block(const Feedback& feedback, const FedBackRows& fed_back, int s, std::int64_t t,
                        std::int64_t first, std::int64_t column, Stored* sum) {
    const std::int64_t width = feedback.width, count = fed_back.counts[s];
    const std::int32_t* const where = fed_back.where + s * width;
    const T* const numbers = fed_back.numbers + s * width;
    const T* const rows = panel_of(feedback, column);
    V sums[1][block_vectors];
    for (V& each : sums[0]) each = V(0);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t i = where[k];
      const T* const row = rows + i * panel;
      const V factor(numbers[i]);
      for (int v = 0; v < block_vectors; ++v) sums[0][v] = fma(factor, load_row<T>(row + v * lanes), sums[0][v]);
    }
    finish(feedback, sums, t, first, column, sum);
  }

  template <int samples>
  static void multiply_block(const Feedback& feedback, const FedBackRows& fed_back, std::int64_t t, std::int64_t first,
                             Stored* sum) {
    const std::int64_t width = feedback.width;
    for (std::int64_t column = 0; column < width; column += block) {
      const T* row = panel_of(feedback, column);
      V sums[samples][block_vectors];
      for (auto& of_sample : sums)
        for (V& each : of_sample) each = V(0);
      for (std::int64_t i = 0; i < width; ++i, row += panel) {
        V columns[block_vectors];
        for (int v = 0; v < block_vectors; ++v) columns[v] = load_row<T>(row + v * lanes);
        for (int s = 0; s < samples; ++s) {
          const V factor(fed_back.numbers[s * width + i]);
          for (int v = 0; v < block_vectors; ++v) sums[s][v] = fma(factor, columns[v], sums[s][v]);
        }
      }
      finish(feedback, sums, t, first, column, sum);
    }
  }

  static void multiply(int samples, const Feedback& feedback, const FedBackRows& fed_back, std::int64_t t,
                       std::int64_t first, Stored* sum) {
    switch (samples) {
      case 1: return multiply_block<1>(feedback, fed_back, t, first, sum);
      case 2: return multiply_block<2>(feedback, fed_back, t, first, sum);
      case 3: return multiply_block<3>(feedback, fed_back, t, first, sum);
      case 4: return multiply_block<4>(feedback, fed_back, t, first, sum);
      case 5: return multiply_block<5>(feedback, fed_back, t, first, sum);
      default: return multiply_block<6>(feedback, fed_back, t, first, sum);
    }
  }
};

void choose(DType type, Feedback& feedback) {
  with_element(type, [&](auto stored) {
    using FedBack = Product<Compute<decltype(stored)>, decltype(stored)>;
    feedback.run = FedBack::run;
    feedback.scratch_bytes = FedBack::scratch_bytes(feedback.width);
  });
}

}  // namespace
}  // namespace CPU_CAPABILITY

void SPIKEFORGE_OF_SET(choose_feedback)(DType type, Feedback& feedback) { choose(type, feedback); }

}  // namespace spikeforge::cpu
