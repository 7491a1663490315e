#pragma once

#include "csrc/simulation/internal/description.h"

#include <cstdint>

namespace spikeforge::simulation {

// Checks that all ranks have the same library, torch and options, and describe the same network. Throws ValueError on
// each of them otherwise, with a rank and its first difference. Returns a number that identifies the network on all
// ranks, which no other network of this process has.
std::int64_t check_alike(const Description& description);

}  // namespace spikeforge::simulation
