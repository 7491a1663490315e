// For tests and measurements: SPIKEFORGE_VECTOR_WIDTH, SPIKEFORGE_PREFETCH, SPIKEFORGE_CHECKPOINT, SPIKEFORGE_SEGMENTS
// and SPIKEFORGE_TURNS override what a schedule would choose, SPIKEFORGE_SCAN_BLOCKS how many blocks share neurons;
// SPIKEFORGE_CLUSTER, SPIKEFORGE_SPLIT and SPIKEFORGE_TILES choose among a recurrent layer's.
#pragma once

#include <bit>
#include <cstdlib>

namespace spikeforge::kernels {

// 0 where the variable is not set to a power of two up to 64.
inline int override_of(const char* name) {
  const char* text = std::getenv(name);
  const int value = text ? std::atoi(text) : 0;
  return value > 0 && value <= 64 && std::has_single_bit(static_cast<unsigned>(value)) ? value : 0;
}

}  // namespace spikeforge::kernels
