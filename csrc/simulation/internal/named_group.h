#pragma once

#include "csrc/simulation/ranks.h"

#include <memory>
#include <string>

namespace spikeforge::simulation {

// Of the group that torch.distributed knows by this name. Throws NotImplementedError where torch has no
// torch.distributed.
std::shared_ptr<Ranks> ranks_of_name(const std::string& name);

}  // namespace spikeforge::simulation
