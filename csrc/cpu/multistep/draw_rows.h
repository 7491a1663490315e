// Rows of random bits for a tape: of the neurons of a tile, at a step.
#pragma once

#include "csrc/cpu/operations.h"
#include "csrc/graph/graph.h"
#include "csrc/kernels/multistep/launch.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// A neuron's place in the shape, of its place in memory.
inline DoubleWord index_of(const DrawsView& view, std::int64_t i) {
  const std::int64_t row = i / view.fast, column = i % view.fast;
  const std::int64_t index =
      row / view.slow * (view.fast * view.slow) + column * view.slow + row % view.slow + view.first;
  return static_cast<DoubleWord>(index);
}

template <class T> class DrawRows {
 public:
  using Bits = typename DrawnBits<T>::type;

  // For the neurons from `first` on.
  DrawRows(const DrawsView& view, std::int64_t first)
      : view_(view), first_(first), key_(static_cast<DoubleWord>(view.seed_number)) {}

  // Elements [begin, end) of the rows of `drawn`, which begin with rows[0], at step t of the call.
  void fill(std::span<const graph::Draw> drawn, const Row<T>* rows, std::int64_t t, std::int64_t begin,
            std::int64_t end) const {
    const DoubleWord step = static_cast<DoubleWord>(view_.offset_number) + static_cast<DoubleWord>(t);
    for (std::size_t i = 0; i < drawn.size(); ++i)
      view_.fast == 1 ? fill_in_order(drawn[i], step, rows[i].data, begin, end)
                      : fill_in_any_order(drawn[i], step, rows[i].data, begin, end);
  }

 private:
  static constexpr int chunk = 64;  // fours

  void fill_in_order(const graph::Draw& draw, DoubleWord step, T* row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t neuron = view_.first + first_ + at;
      const auto index = static_cast<DoubleWord>(neuron);
      const std::int64_t before = static_cast<std::int64_t>(index % 4);  // neurons of its group of four before it
      Bits bits[chunk][4];
      for (int i = 0; i < chunk; ++i) {
        const DoubleWord four = index / 4 + static_cast<DoubleWord>(i);
        const PhiloxWords high = words_of(key_, four, step, draw.once, draw.number, 0);
        if constexpr (sizeof(T) == 4) {
          for (int k = 0; k < 4; ++k) bits[i][k] = high.word[k];
        } else {
          const PhiloxWords low = words_of(key_, four, step, draw.once, draw.number, 1);
          for (int k = 0; k < 4; ++k) bits[i][k] = DoubleWord{high.word[k]} << 32 | low.word[k];
        }
      }
      const std::int64_t there = 4 * chunk - before, count = end - at < there ? end - at : there;
      std::memcpy(static_cast<void*>(row + at), &bits[0][0] + before, static_cast<std::size_t>(count) * sizeof(T));
      at += count;
    }
  }

  void fill_in_any_order(const graph::Draw& draw, DoubleWord step, T* row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t at = begin; at < end; ++at) {
      const DoubleWord index = index_of(view_, first_ + at);
      const Bits bits = drawn_bits<T>({key_, index / 4, static_cast<Word>(index % 4), step}, draw.once, draw.number);
      std::memcpy(static_cast<void*>(row + at), &bits, sizeof bits);
    }
  }

  const DrawsView view_;
  const std::int64_t first_;
  const DoubleWord key_;
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
