#pragma once

#include "csrc/simulation/internal/description.h"

#include <cstdint>

namespace spikeforge::simulation {

// Whether all ranks have the same library, torch and options, and describe the same network. Throws ValueError on each
// of them where not, which names a rank and the first thing that it has otherwise. Returns a number that all of them
// know the network by, which no other network of this process has.
std::int64_t check_alike(const Description& description);

}  // namespace spikeforge::simulation
