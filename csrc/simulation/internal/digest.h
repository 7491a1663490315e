#pragma once

#include <spikeforge/simulation/internal/description.h>

namespace spikeforge::simulation {

// Whether all ranks have the same library, torch and options, and describe the same network. Throws ValueError on each
// of them where not, which names a rank and what it has otherwise.
void check_alike(const Description& description);

}  // namespace spikeforge::simulation
