// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/network/poisson_input.h"
#include "csrc/neuron/draws.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int fours = 64;  // groups of four words that are drawn together
constexpr int lanes = 16;

// Draws the random words of at least `count` neurons, from neuron 4 * four on.
void draw_words(const PoissonDraws& draws, std::uint64_t four, unsigned draw, std::int64_t count,
                std::uint32_t* words) {
  for (int i = 0; 4 * i < count; ++i) {
    const PhiloxWords drawn =
        words_of(draws.key, four + static_cast<std::uint64_t>(i), draws.step, /*once=*/false, draw, /*stream=*/0);
    for (int k = 0; k < 4; ++k) words[4 * i + k] = drawn.word[k];
  }
}

// Returns the number of one neuron, computed from both of its words.
double number_of(const PoissonDraws& draws, std::uint64_t index, double rate) {
  const auto word = [&](unsigned draw) {
    return DoubleWord{chosen(words_of(draws.key, index / 4, draws.step, false, draw, 0), static_cast<Word>(index % 4))};
  };
  return poisson_of(word(0) << 32 | word(1), rate);
}

// Counts the thresholds below the words of neighbouring neurons. Returns false if a word equals a threshold.
bool count_below(const std::uint32_t* words, const PoissonInput& input, std::int32_t* numbers) {
  std::uint32_t ties = 0;
  for (int j = 0; j < lanes; ++j) numbers[j] = 0;
  for (int k = 0; k < input.count; ++k) {
    const std::uint32_t threshold = input.thresholds[k];
    std::uint32_t reached = 0;
    for (int j = 0; j < lanes; ++j) {
      numbers[j] += words[j] > threshold ? 1 : 0;
      reached |= words[j] >= threshold ? 1U : 0U;
      ties |= words[j] == threshold ? 1U : 0U;
    }
    if (reached == 0) break;
  }
  return ties == 0;
}

// Calls f(index, before, at, count) for pieces of the neurons whose words are drawn together: `count` neurons from
// index on, the first of which is number `at` and follows `before` others of its group of four.
template <class F> void for_pieces(const PoissonDraws& draws, std::int64_t n, F&& f) {
  for (std::int64_t at = 0; at < n;) {
    const std::uint64_t index = draws.first + static_cast<std::uint64_t>(at);
    const auto before = static_cast<std::int64_t>(index % 4);  // the neurons before it in its group of four
    const std::int64_t count = n - at < 4 * fours - before ? n - at : 4 * fours - before;
    f(index, before, at, count);
    at += count;
  }
}

template <class T> void add_typed(const PoissonInput& input, const PoissonDraws& draws, std::int64_t n, T* x) {
  const T weight = static_cast<T>(input.weight);
  std::uint32_t words[4 * fours + lanes] = {};
  for_pieces(draws, n, [&](std::uint64_t index, std::int64_t before, std::int64_t at, std::int64_t count) {
    draw_words(draws, index / 4, 0, before + count, words);
    for (std::int64_t i = 0; i < count; i += lanes) {
      std::int32_t numbers[lanes];
      const bool are_exact = count_below(words + before + i, input, numbers);
      const std::int64_t here = count - i < lanes ? count - i : lanes;
      T* const to = x + at + i;
      const auto number = [&](std::int64_t j) {
        return are_exact ? numbers[j] : number_of(draws, index + static_cast<std::uint64_t>(i + j), input.rate);
      };
      if (are_exact && here == lanes)
        for (int j = 0; j < lanes; ++j) to[j] += weight * static_cast<T>(numbers[j]);
      else
        for (std::int64_t j = 0; j < here; ++j) to[j] += weight * static_cast<T>(number(j));
    }
  });
}

template <class T> void add_each_typed(const PoissonInputs& inputs, const PoissonDraws& draws, std::int64_t n, T* x) {
  std::uint32_t high[4 * fours], low[4 * fours];
  for_pieces(draws, n, [&](std::uint64_t index, std::int64_t before, std::int64_t at, std::int64_t count) {
    draw_words(draws, index / 4, 0, before + count, high);
    draw_words(draws, index / 4, 1, before + count, low);
    for (std::int64_t i = 0; i < count; ++i) {
      const DoubleWord bits = DoubleWord{high[before + i]} << 32 | low[before + i];
      const double rate = inputs.rates[at + i];
      const double number =
          is_inverted(rate) ? inverted_poisson_of(uniform_of(bits), rate, inputs.none[at + i]) : poisson_of(bits, rate);
      x[at + i] += static_cast<T>(inputs.weights[at + i]) * static_cast<T>(number);
    }
  });
}

void add(const PoissonInput& input, const PoissonDraws& draws, DType type, std::int64_t n, void* x) {
  type == DType::f64 ? add_typed(input, draws, n, static_cast<double*>(x))
                     : add_typed(input, draws, n, static_cast<float*>(x));
}

void add_each(const PoissonInputs& inputs, const PoissonDraws& draws, DType type, std::int64_t n, void* x) {
  type == DType::f64 ? add_each_typed(inputs, draws, n, static_cast<double*>(x))
                     : add_each_typed(inputs, draws, n, static_cast<float*>(x));
}

constexpr PoissonKernels table = {add, add_each};

}  // namespace
}  // namespace CPU_CAPABILITY

const PoissonKernels& SPIKEFORGE_OF_SET(poisson_kernels)() { return table; }

}  // namespace spikeforge::cpu
