#include "csrc/cpu/network/poisson_input.h"
#include "csrc/neuron/draws.h"

#include <cstdint>

namespace spikeforge::cpu {

double probability_of_none(double rate) { return is_inverted(rate) ? exp_of(-rate) : 0; }

std::vector<std::uint32_t> poisson_thresholds(double rate) {
  if (!is_inverted(rate)) return {};
  std::vector<std::uint32_t> thresholds;
  const double most = poisson_of(~DoubleWord{0}, rate);
  DoubleWord least = 0;
  for (double k = 0; k < most; ++k) {
    DoubleWord high = ~DoubleWord{0};  // its number is above k
    while (least < high) {
      const DoubleWord middle = least + (high - least) / 2;
      if (poisson_of(middle, rate) > k)
        high = middle;
      else
        least = middle + 1;
    }
    thresholds.push_back(static_cast<std::uint32_t>(least >> 32));
  }
  return thresholds;
}

}  // namespace spikeforge::cpu
