#include "csrc/neuron/draws.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

void check_words(const PhiloxWords& counter, unsigned long long key, const PhiloxWords& expected) {
  const PhiloxWords words = philox(counter, key);
  for (int i = 0; i < 4; ++i) CHECK(words.word[i] == expected.word[i]);
}

}  // namespace

// The known-answer tests of Random123, the library of the algorithm's authors.
TEST_CASE("Philox4x32-10 gives its published words") {
  check_words({0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  check_words({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff,
              {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  check_words({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822,
              {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

// Kolmogorov-Smirnov test: for n numbers, the largest distance exceeds 1.95 / sqrt(n) in 0.1 % of draws.
TEST_CASE("the numbers of a counter are uniform, and their quantiles normal") {
  constexpr unsigned n = 40000;
  std::vector<double> uniform, normal;
  for (unsigned i = 0; i < n; ++i) {
    const PhiloxWords words = philox({i, 0, 0, 0}, 7);
    uniform.push_back(uniform_of(words.word[0]));
    normal.push_back(normal_of(uniform_of(words.word[3])));
  }
  std::sort(uniform.begin(), uniform.end());
  std::sort(normal.begin(), normal.end());
  double from_uniform = 0, from_normal = 0;
  for (unsigned i = 0; i < n; ++i) {
    const double share = (i + .5) / n;
    from_uniform = std::max(from_uniform, std::abs(uniform[i] - share));
    from_normal = std::max(from_normal, std::abs(.5 * std::erfc(-normal[i] / std::sqrt(2.)) - share));
  }
  CHECK(from_uniform < 1.95 / std::sqrt(n));
  CHECK(from_normal < 1.95 / std::sqrt(n));
}

TEST_CASE("functions that are rounded alike everywhere are those of the standard library, but for the last bits") {
  double of_log = 0, of_exp = 0;
  for (double x = 1e-300; x < 1e300; x *= 1.0037)
    of_log = std::max(of_log, std::abs(log_of(x) - std::log(x)) / std::max(1., std::abs(std::log(x))));
  for (double x = 0; x >= -32; x -= .0037) of_exp = std::max(of_exp, std::abs(exp_of(x) / std::exp(x) - 1));
  CHECK(of_log < 4e-16);
  CHECK(of_exp < 4e-16);
  CHECK(exp_of(0) == 1);
}

TEST_CASE("the normal quantile in double precision is the inverse of the distribution function") {
  double largest = 0;
  for (double u = 0x1p-53; u < .5; u *= 1.01) {
    const double below = .5 * std::erfc(-normal_of(u) / std::sqrt(2.));
    largest = std::max(largest, std::abs(below / u - 1));
    CHECK(normal_of(1 - u) == -normal_of(1 - (1 - u)));
  }
  CHECK(largest < 1e-13);
  CHECK(normal_of(.5) == 0);
}

TEST_CASE("the normal number in single precision is the quantile of the uniform one, as far as 23 bits go") {
  double largest = 0;
  bool is_odd = true;
  for (Word k = 0; k < 1U << 23; k += k < 1000 ? 1 : 17) {
    const Word bits = k << 9 | 0x155U;  // the lower 9 bits are ignored
    largest = std::max(largest, std::abs(normal(bits) / normal_of((k + .5) * 0x1p-23) - 1));
    is_odd = is_odd && normal(~bits) == -normal(bits);
  }
  CHECK(largest < 1e-6);
  CHECK(is_odd);
}

TEST_CASE("uniform numbers are above 0 and below 1, and equal in both types except for rounding") {
  for (const Word high : {0U, 511U, 512U, 0x80000000U, 0xffffffffU})
    for (const Word low : {0U, 0xffffffffU}) {
      const double u = uniform(DoubleWord{high} << 32 | low);
      CHECK((0 < u && u < 1 && 0 < uniform(high) && uniform(high) < 1));
      CHECK(std::abs(u - uniform(high)) <= 0x1p-24);
    }
}

TEST_CASE("a probability is kept to the last of the 32 bits") {
  CHECK(bernoulli(Word{0}, 1e-9F) == 1);
  CHECK(bernoulli(Word{5}, 1e-9F) == 0);
  CHECK(bernoulli(0xffffffffU, 1.F) == 1);
  CHECK(bernoulli(Word{0}, 0.F) == 0);
  CHECK(bernoulli(0x7fffffffU, .5F) == 1);
  CHECK(bernoulli(0x80000000U, .5F) == 0);
}

TEST_CASE("Poisson probabilities are the distribution's, for small and large rates") {
  for (const double rate : {16., 77.5, 1e4})
    for (double deviations = -6; deviations <= 6; deviations += .7) {
      const double k = std::max(0., std::floor(rate + deviations * std::sqrt(rate)));
      const double expected = -rate + k * std::log(rate) - std::lgamma(k + 1);
      CHECK(std::abs(log_of_poisson(k, rate) - expected) <= 1e-11 * std::max(1., rate * std::log(rate) * 1e-3));
    }
  CHECK(log_of_poisson(0, 20) == -20);
}

TEST_CASE("every u has a Poisson number, also the last before 1") {
  for (const double rate : {0., 1e-300, 1e-9, .5, 7., 15.999}) {
    const double last = inverted_poisson_of(1 - 0x1p-53, rate, exp_of(-rate));
    CHECK(last >= std::floor(rate));
    CHECK(last <= 90);
    CHECK(inverted_poisson_of(0x1p-53, rate, exp_of(-rate)) <= rate);
  }
  CHECK(std::isnan(poisson_of(0, -1e-300)));
  CHECK(std::isnan(poisson_of(0, std::nan(""))));
  CHECK(std::isnan(poisson_of(0, HUGE_VAL)));
  CHECK(poisson_of(~DoubleWord{0}, 0) == 0);
}

// The bounds are exceeded with a probability of 0.1 %.
TEST_CASE("Poisson numbers have their rate as mean and variance") {
  for (const double rate : {.3, 15.9, 16.1, 300., 1e6, 1e12}) {
    constexpr int n = 40000;
    double sum = 0, squares = 0;
    for (unsigned i = 0; i < n; ++i) {
      const PhiloxWords w = philox({{i, 0, 0, 0}}, 11);
      const double off = poisson_of(DoubleWord{w.word[0]} << 32 | w.word[1], rate) - rate;
      sum += off;
      squares += off * off;
    }
    INFO("rate " << rate);
    CHECK(std::abs(sum / n) < 3.3 * std::sqrt(rate / n));
    CHECK(std::abs(squares / n / rate - 1) < 3.3 * std::sqrt((2 + 1 / rate) / n));
  }
}

}  // namespace spikeforge::test
