// From a traced cell's launch description to a running kernel; see multistep_launch.h.
#pragma once

#include <spikeforge/runtime/multistep_launch.h>
#include <spikeforge/runtime/traced_launch.h>

namespace spikeforge::runtime {

void launch(const TracedForwardLaunch& launch, const Device& device, void* stream);
void launch(const TracedBackwardLaunch& launch, const Device& device, void* stream);

}  // namespace spikeforge::runtime
