#pragma once

#include "csrc/kernels/layer/arguments.h"

#include <bit>
#include <cstdint>

namespace spikeforge::layers {

// Returns the Divisor of n for 0 < n < 2^31.
inline Divisor divisor_of(std::int64_t n) {
  const auto divisor = static_cast<unsigned>(n);
  const auto shift = static_cast<unsigned>(std::bit_width(divisor - 1));
  const std::uint64_t factor = ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - divisor)) / divisor + 1;
  return {divisor, static_cast<unsigned>(factor), shift};
}

}  // namespace spikeforge::layers
