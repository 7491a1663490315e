// Rows of random bits for a tape: of the neurons of a tile, at a step.
#pragma once

#include <spikeforge/cpu/operations.h>
#include <spikeforge/graph/graph.h>
#include <spikeforge/kernels/multistep/launch.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// A neuron's place in the shape, of its place in memory.
inline DoubleWord index_of(const DrawsView& view, std::int64_t i) {
  if (view.fast == 1) return static_cast<DoubleWord>(i);
  const std::int64_t row = i / view.fast, column = i % view.fast;
  return static_cast<DoubleWord>(row / view.slow * (view.fast * view.slow) + column * view.slow + row % view.slow);
}

template <class T>
class DrawRows {
 public:
  using Bits = typename Operations<T>::Bits;

  // Of the neurons from `first` on.
  DrawRows(const DrawsView& view, std::int64_t first)
      : view_(view), first_(first), key_(static_cast<DoubleWord>(view.seed_number)) {}

  // Elements [begin, end) of the rows of `drawn`, which begin with rows[0], at step t of the call.
  void fill(std::span<const graph::Draw> drawn, const Row<T>* rows, std::int64_t t, std::int64_t begin,
            std::int64_t end) const {
    const DoubleWord step = static_cast<DoubleWord>(view_.offset_number) + static_cast<DoubleWord>(t);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const unsigned block = drawn[i].number / 4;
      T* target[4] = {};
      bool is_first = true;
      for (std::size_t j = 0; j < drawn.size(); ++j)
        if (drawn[j].number / 4 == block && drawn[j].once == drawn[i].once) {
          target[drawn[j].number % 4] = rows[j].data;
          is_first = is_first && j >= i;
        }
      if (is_first) fill_block(drawn[i].once, block, step, target, begin, end);
    }
  }

 private:
  static constexpr int chunk = 64;

  void fill_block(bool once, unsigned block, DoubleWord step, T* const (&target)[4], std::int64_t begin,
                  std::int64_t end) const {
    for (std::int64_t at = begin; at < end; at += chunk) {
      const int count = static_cast<int>(end - at < chunk ? end - at : chunk);
      DoubleWord neuron[chunk];
      for (int i = 0; i < chunk; ++i) neuron[i] = static_cast<DoubleWord>(first_ + at + i);
      if (view_.fast != 1)
        for (int i = 0; i < count; ++i) neuron[i] = index_of(view_, first_ + at + i);
      Bits bits[4][chunk];
      for (int i = 0; i < chunk; ++i) {
        const DrawnBlock<T> drawn({key_, neuron[i], step}, once, block);
        for (int w = 0; w < 4; ++w) bits[w][i] = drawn.bits(w);
      }
      for (int w = 0; w < 4; ++w)
        if (target[w] != nullptr)
          std::memcpy(static_cast<void*>(target[w] + at), bits[w], static_cast<std::size_t>(count) * sizeof(T));
    }
  }

  const DrawsView view_;
  const std::int64_t first_;
  const DoubleWord key_;
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
