#include "csrc/neuron/random.h"

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

// The known answers that come with Random123, the authors' library.
TEST_CASE("Philox4x32-10 gives its published words") {
  check_words({0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  check_words({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff,
              {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  check_words({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822,
              {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

// Kolmogorov and Smirnov: over n numbers, the largest distance exceeds 1.95 / sqrt(n) in 0.1 % of draws.
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

}  // namespace spikeforge::test
