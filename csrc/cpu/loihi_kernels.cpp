// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of kernels.cpp.
//
// A loop of its own: multistep.h is made of vectors of floating-point numbers, of surrogates and of a backward pass.
// Here a cell is plain int arithmetic, which the compiler makes vectors of.
#include <spikeforge/cpu/loihi_kernels.h>

#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

struct Variant {};

std::int64_t place_of(const ParamView& param, std::int64_t neuron) { return (neuron / param.inner) % param.count; }

int value_of(const ParamView& param, std::int64_t neuron) {
  if (param.data == nullptr) return static_cast<int>(param.number);
  return static_cast<const int*>(param.data)[place_of(param, neuron)];
}

// A cell for each neuron of a tile, word by word: neighbours of a word lie beside each other, as vectors want them.
template <class Cell>
class Cells {
  static constexpr int words = sizeof(Cell) / sizeof(int);
  int word_[words][loihi_tile];

 public:
  void set(int i, const Cell& cell) {
    int word[words];
    std::memcpy(word, &cell, sizeof cell);
    for (int w = 0; w < words; ++w) word_[w][i] = word[w];
  }
  Cell get(int i) const {
    int word[words];
    for (int w = 0; w < words; ++w) word[w] = word_[w][i];
    Cell cell;
    std::memcpy(&cell, word, sizeof cell);
    return cell;
  }
};

template <class Cell>
class Loop {
  static constexpr int S = Cell::n_states;
  const LoihiLaunch& launch_;
  const std::int64_t begin_;
  const int count_;
  int state_[S][loihi_tile];

  Cell cell_of(std::int64_t neuron) const {
    int params[Cell::n_params];
    for (int j = 0; j < Cell::n_params; ++j) params[j] = value_of(launch_.params[j], neuron);
    return Cell(params);
  }

  // `cell(i)` is that of the tile's neuron i.
  template <class CellOf>
  void run(CellOf&& cell) {
    const int* x = static_cast<const int*>(launch_.x.data) + begin_;
    int* y = static_cast<int*>(launch_.spikes) + begin_;
    for (std::int64_t t = 0; t < launch_.steps; ++t) {
      step(cell, x, y, count_);
      x += launch_.x.time_stride;
      y += launch_.neurons;
      if (launch_.store_states) store(t);
    }
    if (!launch_.store_states) store(0);
  }

  // The compiler has to see that nothing here is written twice.
  template <class CellOf>
  void step(const CellOf& cell, const int* __restrict x, int* __restrict y, const int count) {
    for (int i = 0; i < count; ++i) {
      int state[S], spike = 0;
      for (int s = 0; s < S; ++s) state[s] = state_[s][i];
      cell(i).step(x + i, state, &spike);
      y[i] = spike;
      for (int s = 0; s < S; ++s) state_[s][i] = state[s];
    }
  }

  void store(std::int64_t row) const {
    for (int s = 0; s < S; ++s)
      std::memcpy(static_cast<int*>(launch_.states[s]) + row * launch_.neurons + begin_, state_[s],
                  static_cast<std::size_t>(count_) * sizeof(int));
  }

 public:
  Loop(const LoihiLaunch& launch, std::int64_t begin, std::int64_t end)
      : launch_(launch), begin_(begin), count_(static_cast<int>(end - begin)) {
    for (int s = 0; s < S; ++s) {
      const void* const data = launch.initial[s].data;
      const std::size_t bytes = static_cast<std::size_t>(count_) * sizeof(int);
      if (data == nullptr)
        std::memset(state_[s], 0, bytes);
      else
        std::memcpy(state_[s], static_cast<const int*>(data) + begin, bytes);
    }
  }

  void run() {
    bool shared = true;
    for (int j = 0; j < Cell::n_params; ++j) shared = shared && launch_.params[j].data == nullptr;
    if (shared) {
      const Cell cell = cell_of(begin_);
      run([&](int) { return cell; });
    } else {
      Cells<Cell> cells;
      for (int i = 0; i < count_; ++i) cells.set(i, cell_of(begin_ + i));
      run([&](int i) { return cells.get(i); });
    }
  }
};

template <bool ternary, LoihiForm form>
void run(const LoihiLaunch& launch, std::int64_t begin, std::int64_t end) {
  Loop<Loihi<ternary, form, Variant>>(launch, begin, end).run();
}

template <bool ternary>
void run(const LoihiLaunch& launch, std::int64_t begin, std::int64_t end) {
  switch (launch.form) {
    case LoihiForm::plain:
      return run<ternary, LoihiForm::plain>(launch, begin, end);
    case LoihiForm::reset:
      return run<ternary, LoihiForm::reset>(launch, begin, end);
    case LoihiForm::refractory:
      return run<ternary, LoihiForm::refractory>(launch, begin, end);
  }
}

void run(const LoihiLaunch& launch, std::int64_t begin, std::int64_t end) {
  launch.ternary ? run<true>(launch, begin, end) : run<false>(launch, begin, end);
}

void dots(const int* x, const int* weights, std::int64_t in, std::int64_t out, int* __restrict y) {
  for (std::int64_t o = 0; o < out; ++o) {
    const int* const row = weights + o * in;
    unsigned sum = 0;
    for (std::int64_t j = 0; j < in; ++j) sum += static_cast<unsigned>(row[j]) * static_cast<unsigned>(x[j]);
    y[o] = static_cast<int>(sum);
  }
}

void columns(const int* x, const int* matrix, std::int64_t in, std::int64_t out, int* __restrict y) {
  std::memset(y, 0, static_cast<std::size_t>(out) * sizeof(int));
  for (std::int64_t j = 0; j < in; ++j) {
    const auto message = static_cast<unsigned>(x[j]);
    if (message == 0) continue;
    const int* const column = matrix + j * out;
    for (std::int64_t o = 0; o < out; ++o)
      y[o] = static_cast<int>(static_cast<unsigned>(y[o]) + message * static_cast<unsigned>(column[o]));
  }
}

constexpr LoihiKernels table = {run, dots, columns};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const LoihiKernels& loihi_kernels_avx512() { return table; }
#elif defined(CPU_CAPABILITY_AVX2)
const LoihiKernels& loihi_kernels_avx2() { return table; }
#else
const LoihiKernels& loihi_kernels_default() { return table; }
#endif

}  // namespace spikeforge::cpu
