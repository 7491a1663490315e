// From a launch description to a running kernel: chooses a schedule, finds the kernel for the spec, launches it.
#pragma once

#include <spikeforge/runtime/launch.h>

namespace spikeforge::runtime {

struct Device {
  int major, minor;  // compute capability
  int multiprocessors;
};

// The device must be current, and the stream, a cudaStream_t, one of its own. Nothing is waited for.
void launch(const ForwardLaunch& launch, const Device& device, void* stream);
void launch(const BackwardLaunch& launch, const Device& device, void* stream);

}  // namespace spikeforge::runtime
