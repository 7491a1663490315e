// Poisson input from tables equals the draws of the operation poisson, for every instruction set.
#include "csrc/cpu/network/poisson_input.h"
#include "csrc/neuron/draws.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace spikeforge {
namespace {

struct Set {
  std::string name;
  const cpu::PoissonKernels* kernels;
};

std::vector<Set> instruction_sets() {
  std::vector<Set> sets = {{"default", &cpu::poisson_kernels_default()}};
#if SPIKEFORGE_CPU_VARIANTS == 3
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back({"avx2", &cpu::poisson_kernels_avx2()});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    sets.push_back({"avx512", &cpu::poisson_kernels_avx512()});
#endif
  return sets;
}

std::uint32_t word_of(const cpu::PoissonDraws& draws, std::uint64_t neuron, unsigned draw) {
  return words_of(draws.key, neuron / 4, draws.step, /*once=*/false, draw, /*stream=*/0).word[neuron % 4];
}

template <class T> std::vector<T> one_by_one(double rate, const cpu::PoissonDraws& draws, T weight, std::size_t n) {
  std::vector<T> sums;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t neuron = draws.first + i;
    const DoubleWord bits = DoubleWord{word_of(draws, neuron, 0)} << 32 | word_of(draws, neuron, 1);
    sums.push_back(T(0.25) + weight * static_cast<T>(poisson_of(bits, rate)));
  }
  return sums;
}

template <class T>
std::vector<T> by_kernel(const Set& set, const cpu::PoissonInput& input, const cpu::PoissonDraws& draws, T weight,
                         std::size_t n) {
  std::vector<T> sums(n, T(0.25));
  const DType type = sizeof(T) == 8 ? DType::f64 : DType::f32;
  cpu::PoissonInput weighted = input;
  weighted.weight = weight;
  set.kernels->add(weighted, draws, type, static_cast<std::int64_t>(n), sums.data());
  return sums;
}

// Returns the result of the kernel for neurons with different rates.
template <class T>
std::vector<T> by_kernel_of_each(const Set& set, double rate, const cpu::PoissonDraws& draws, T weight, std::size_t n) {
  std::vector<T> sums(n, T(0.25));
  const DType type = sizeof(T) == 8 ? DType::f64 : DType::f32;
  const std::vector<double> rates(n, rate), none(n, cpu::probability_of_none(rate)), weights(n, weight);
  set.kernels->add_each({rates.data(), none.data(), weights.data()}, draws, type, static_cast<std::int64_t>(n),
                        sums.data());
  return sums;
}

}  // namespace

TEST_CASE("Poisson input equals the draws of the operation poisson, for any first neuron and length") {
  const std::uint64_t far = (std::uint64_t{1} << 34) - 6;  // the indices of groups of four neurons exceed 32 bits
  for (const double rate : {1e-9, 0.128, 2.3, 15.9, 40.0}) {
    const std::vector<std::uint32_t> thresholds = cpu::poisson_thresholds(rate);
    CHECK(thresholds.empty() == !cpu::is_inverted(rate));
    const cpu::PoissonInput input{rate, 0, thresholds.data(), static_cast<int>(thresholds.size())};
    for (const Set& set : instruction_sets())
      for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{7}, far})
        for (const std::size_t n : {1, 15, 256, 1003}) {
          const cpu::PoissonDraws draws{0x123456789abcdefULL, (std::uint64_t{1} << 33) + 5, first};
          INFO(set.name << ", rate " << rate << ", " << n << " neurons from " << first << " on");
          const auto single = one_by_one<float>(rate, draws, 1.5F, n);
          const auto wide = one_by_one<double>(rate, draws, -0.1, n);
          CHECK(by_kernel_of_each<float>(set, rate, draws, 1.5F, n) == single);
          CHECK(by_kernel_of_each<double>(set, rate, draws, -0.1, n) == wide);
          if (thresholds.empty()) continue;
          CHECK(by_kernel<float>(set, input, draws, 1.5F, n) == single);
          CHECK(by_kernel<double>(set, input, draws, -0.1, n) == wide);
        }
  }
}

TEST_CASE("both words of a neuron decide if the first is a threshold of its table") {
  const cpu::PoissonDraws draws{99, 4, 0};
  const double rate = 1.0;
  for (const std::uint64_t neuron : {0, 17, 63}) {
    std::vector<std::uint32_t> thresholds = cpu::poisson_thresholds(rate);
    // A table with a wrong threshold that equals the random word of a neuron: the table is then not used.
    const std::uint32_t word = word_of(draws, neuron, 0);
    std::size_t k = 0;
    while (k < thresholds.size() && thresholds[k] < word) ++k;
    thresholds[k] = word;
    const cpu::PoissonInput input{rate, 0, thresholds.data(), static_cast<int>(thresholds.size())};
    for (const Set& set : instruction_sets())
      CHECK(by_kernel<double>(set, input, draws, 1.0, 64)[neuron] == one_by_one<double>(rate, draws, 1.0, 64)[neuron]);
  }
}

TEST_CASE("thresholds part the random bits of each number from those of the next") {
  for (const double rate : {0.01, 0.7, 5.0, 15.0}) {
    const std::vector<std::uint32_t> thresholds = cpu::poisson_thresholds(rate);
    for (std::size_t k = 0; k < thresholds.size(); ++k) {
      const auto number = static_cast<double>(k);
      const DoubleWord word = thresholds[k];
      if (word > 0) CHECK(poisson_of((word << 32) - 1, rate) <= number);
      CHECK(poisson_of(word << 32 | 0xffffffffU, rate) > number);
      if (k > 0) CHECK(thresholds[k] >= thresholds[k - 1]);
    }
  }
}

}  // namespace spikeforge
