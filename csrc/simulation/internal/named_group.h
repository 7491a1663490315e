#pragma once

#include "csrc/simulation/ranks.h"

#include <memory>
#include <string>

namespace spikeforge::simulation {

// The group of torch.distributed with this name. Throws NotImplementedError if torch has no torch.distributed.
std::shared_ptr<Ranks> ranks_of_name(const std::string& name);

}  // namespace spikeforge::simulation
