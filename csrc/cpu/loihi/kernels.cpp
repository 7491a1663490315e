// Compiled once for each instruction set (CPU_CAPABILITY), under the rules at the top of predefined_loops.cpp.
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/loihi/products.h"
#include "csrc/cpu/multistep/multistep.h"
#include "csrc/cpu/multistep/param_rows.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tile.h"
#include "csrc/neuron/loihi.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Rows of Loihi neurons in scalar int arithmetic, which the compiler vectorizes, because the vectors of vec.h are
// floating-point. A template argument of the loop in multistep.h, for the forward pass only.
template <class Cell> class LoihiRows {
  static constexpr int S = Cell::n_states;
  static constexpr std::size_t words = sizeof(Cell) / sizeof(int);

 public:
  using Number = int;
  using Stored = int;
  static constexpr bool in_place = true;

  LoihiRows(const Tile& tile, const LoopContext&, Scratch& scratch) : tile_(tile), scratch_(scratch) {
    for (const ParamView& param : tile.launch.params)
      if (param.data != nullptr) shared_ = false;
  }

  bool is_legal() const { return is_legal_; }

  void take_forward(const ForwardLaunch&) {
    words_ = scratch_.take<int>(shared_ ? 0 : words * static_cast<std::size_t>(tile_.padded));
    const int* rows[Cell::n_params];
    for (int j = 0; j < Cell::n_params; ++j) rows[j] = take_param(j);
    if (scratch_.counts_only() || !is_legal_) return;
    if (shared_) {
      cell_ = cell_of(rows, 0);
      return;
    }
    for (std::int64_t i = 0; i < tile_.count; ++i) {
      const Cell cell = cell_of(rows, i);
      int word[words];
      std::memcpy(word, &cell, sizeof cell);
      for (std::size_t w = 0; w < words; ++w) words_[static_cast<std::int64_t>(w) * tile_.padded + i] = word[w];
    }
  }

  void initial(int* states) const { std::memset(states, 0, static_cast<std::size_t>(S * tile_.padded) * sizeof(int)); }

  void step(const ForwardLaunch& launch, std::int64_t t, Ranges, const int* /*before*/, int* states) const {
    const int* const x = tile_.row<int>(launch.inputs[0], t);
    int* const y = tile_.result<int>(launch.outputs[0], t);
    if (shared_)
      run([cell = cell_](std::int64_t) { return cell; }, x, states, tile_.padded, y, tile_.count);
    else
      run([this](std::int64_t i) { return cell_at(i); }, x, states, tile_.padded, y, tile_.count);
  }

 private:
  // Loads a parameter as a row of the tile's neurons; returns null for a scalar.
  const int* take_param(int j) {
    const auto at = static_cast<std::size_t>(j);
    const ParamView& param = tile_.launch.params[at];
    if (param.data == nullptr) return nullptr;
    int* const row = scratch_.take<int>(param_row_size(tile_.padded));
    if (!scratch_.counts_only())
      is_legal_ &= load_param_row(param, tile_.launch.cell->params[at], tile_.begin, tile_.count, row);
    return row;
  }

  // Returns the cell of the tile's neuron i.
  Cell cell_of(const int* const (&rows)[Cell::n_params], std::int64_t i) const {
    int params[Cell::n_params];
    for (int j = 0; j < Cell::n_params; ++j)
      params[j] =
          rows[j] != nullptr ? rows[j][i] : static_cast<int>(tile_.launch.params[static_cast<std::size_t>(j)].number);
    return Cell(params);
  }

  Cell cell_at(std::int64_t i) const {
    int word[words];
    for (std::size_t w = 0; w < words; ++w) word[w] = words_[static_cast<std::int64_t>(w) * tile_.padded + i];
    Cell cell;
    std::memcpy(&cell, word, sizeof cell);
    return cell;
  }

  // Runs a step. `cell(i)` returns the cell of the tile's neuron i. __restrict declares that the arrays do not overlap.
  template <class CellOf>
  static void run(const CellOf& cell, const int* __restrict x, int* __restrict states, std::int64_t stride,
                  int* __restrict y, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      int state[S], spike = 0;
      for (int s = 0; s < S; ++s) state[s] = states[s * stride + i];
      cell(i).step(x + i, state, &spike);
      y[i] = spike;
      for (int s = 0; s < S; ++s) states[s * stride + i] = state[s];
    }
  }

  const Tile& tile_;
  Scratch& scratch_;
  bool shared_ = true;  // true if all neurons have the same parameters
  bool is_legal_ = true;
  Cell cell_;
  int* words_ = nullptr;  // the words of all cells, [words, padded]: the same word of neighbours is contiguous
};

namespace {

struct Variant {};

template <bool ternary> Loop loop_of(LoihiForm form) {
  switch (form) {
    case LoihiForm::plain: return Multistep<LoihiRows<Loihi<ternary, LoihiForm::plain, Variant>>>::forward_only();
    case LoihiForm::reset: return Multistep<LoihiRows<Loihi<ternary, LoihiForm::reset, Variant>>>::forward_only();
    case LoihiForm::refractory:
      return Multistep<LoihiRows<Loihi<ternary, LoihiForm::refractory, Variant>>>::forward_only();
  }
  return {};
}

Loop loihi_loop(bool ternary, LoihiForm form) { return ternary ? loop_of<true>(form) : loop_of<false>(form); }

// ---- products ----

void dots(const int* x, const int* weights, std::int64_t in, std::int64_t out, int* __restrict y) {
  for (std::int64_t o = 0; o < out; ++o) {
    const int* const row = weights + o * in;
    unsigned sum = 0;
    for (std::int64_t j = 0; j < in; ++j) sum += static_cast<unsigned>(row[j]) * static_cast<unsigned>(x[j]);
    y[o] = static_cast<int>(sum);
  }
}

void columns(const int* x, const int* matrix, std::int64_t in, std::int64_t out, int* __restrict y) {
  std::fill_n(y, out, 0);
  for (std::int64_t j = 0; j < in; ++j) {
    const auto message = static_cast<unsigned>(x[j]);
    if (message == 0) continue;
    const int* const column = matrix + j * out;
    for (std::int64_t o = 0; o < out; ++o)
      y[o] = static_cast<int>(static_cast<unsigned>(y[o]) + message * static_cast<unsigned>(column[o]));
  }
}

constexpr LoihiProducts products = {dots, columns};

}  // namespace
}  // namespace CPU_CAPABILITY

Loop SPIKEFORGE_OF_SET(loihi_loop)(bool ternary, LoihiForm form) { return loihi_loop(ternary, form); }

const LoihiProducts& SPIKEFORGE_OF_SET(loihi_products)() { return products; }

}  // namespace spikeforge::cpu
