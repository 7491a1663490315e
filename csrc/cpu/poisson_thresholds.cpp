#include <spikeforge/cpu/poisson_input.h>
#include <spikeforge/neuron/draws.h>

#include <cstdint>

namespace spikeforge::cpu {

std::vector<std::uint32_t> poisson_thresholds(double rate) {
  constexpr double least_of_rejection = 16;  // of poisson_of; inversion below it
  if (!(rate < least_of_rejection)) return {};
  std::vector<std::uint32_t> thresholds;
  const double most = poisson_of(~DoubleWord{0}, rate);
  DoubleWord least = 0;
  for (double k = 0; k < most; ++k) {
    DoubleWord high = ~DoubleWord{0};  // gives more than k
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
