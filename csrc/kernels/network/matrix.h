#pragma once

#include "csrc/kernels/event/spec.h"
#include "csrc/kernels/network/launch.h"

namespace spikeforge::kernels {

// How a network's kernels read its connections.
event::KernelSpec matrix_of(const NetworkLaunch& launch);

}  // namespace spikeforge::kernels
