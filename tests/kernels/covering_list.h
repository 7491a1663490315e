// A covering list: launches in which every pair of values of any two options occurs at least once.
#pragma once

#include <spikeforge/kernels/multistep/kernel_spec.h>

#include <vector>

namespace spikeforge::tests {

// Kernels as calls make them, on a device of 132 multiprocessors; without duplicates, always the same. Those of Loihi's
// neurons, which have few options, follow the others.
std::vector<jit::KernelSource> covering_list();

}  // namespace spikeforge::tests
