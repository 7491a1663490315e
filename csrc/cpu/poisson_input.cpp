// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include <spikeforge/cpu/poisson_input.h>
#include <spikeforge/neuron/draws.h>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int fours = 64;  // of words that are drawn together
constexpr int lanes = 16;

// The number of one neuron, by both of its words.
double number_of(const PoissonDraws& draws, std::uint64_t index, double rate) {
  const auto word = [&](unsigned draw) {
    return DoubleWord{chosen(words_of(draws.key, index / 4, draws.step, false, draw, 0), index % 4)};
  };
  return poisson_of(word(0) << 32 | word(1), rate);
}

// Of neurons side by side: how many thresholds are below their words. False where a word is one of them.
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

template <class T>
void add_by_table(const PoissonInput& input, const PoissonDraws& draws, T weight, std::int64_t n, T* x) {
  std::uint32_t words[4 * fours + lanes] = {};
  for (std::int64_t at = 0; at < n;) {
    const std::uint64_t index = draws.first + static_cast<std::uint64_t>(at);
    const auto before = static_cast<std::int64_t>(index % 4);  // neurons of its four that are not asked for
    for (int i = 0; i < fours; ++i) {
      const PhiloxWords four = words_of(draws.key, index / 4 + static_cast<std::uint64_t>(i), draws.step, false, 0, 0);
      for (int k = 0; k < 4; ++k) words[4 * i + k] = four.word[k];
    }
    const std::int64_t end = n - at < 4 * fours - before ? n - at : 4 * fours - before;
    for (std::int64_t i = 0; i < end; i += lanes) {
      std::int32_t numbers[lanes];
      const bool are_exact = count_below(words + before + i, input, numbers);
      const std::int64_t here = end - i < lanes ? end - i : lanes;
      for (std::int64_t j = 0; j < here; ++j) {
        const double number =
            are_exact ? numbers[j] : number_of(draws, index + static_cast<std::uint64_t>(i + j), input.rate);
        x[at + i + j] += weight * static_cast<T>(number);
      }
    }
    at += end;
  }
}

template <class T>
void add_typed(const PoissonInput& input, const PoissonDraws& draws, T weight, std::int64_t n, T* x) {
  if (input.count != 0) return add_by_table(input, draws, weight, n, x);
  for (std::int64_t i = 0; i < n; ++i)
    x[i] += weight * static_cast<T>(number_of(draws, draws.first + static_cast<std::uint64_t>(i), input.rate));
}

void add(const PoissonInput& input, const PoissonDraws& draws, double weight, DType type, std::int64_t n, void* x) {
  if (type == DType::f64)
    add_typed(input, draws, weight, n, static_cast<double*>(x));
  else
    add_typed(input, draws, static_cast<float>(weight), n, static_cast<float*>(x));
}

constexpr PoissonKernels table = {add};

}  // namespace
}  // namespace CPU_CAPABILITY

#if defined(CPU_CAPABILITY_AVX512)
const PoissonKernels& poisson_kernels_avx512() { return table; }
#elif defined(CPU_CAPABILITY_AVX2)
const PoissonKernels& poisson_kernels_avx2() { return table; }
#else
const PoissonKernels& poisson_kernels_default() { return table; }
#endif

}  // namespace spikeforge::cpu
