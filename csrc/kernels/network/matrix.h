#pragma once

#include <spikeforge/kernels/event/spec.h>
#include <spikeforge/kernels/network/launch.h>

namespace spikeforge::kernels {

// How a network's kernels read its connections.
event::KernelSpec matrix_of(const NetworkLaunch& launch);

}  // namespace spikeforge::kernels
