// A scan over time on the CPU: threads take segments of the sequence side by side, for neurons too few to give each
// thread some.
#pragma once

#include "csrc/kernels/multistep/launch.h"

namespace spikeforge::ops {

// Runs a launch of a cell that has a composition; returns false, without an effect, if the loop is at least as fast.
bool scan_cpu(const ForwardLaunch& launch);

}  // namespace spikeforge::ops
