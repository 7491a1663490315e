// A covering list: launches in which every pair of values of any two options occurs at least once.
#pragma once

#include "csrc/jit/kernel_cache.h"

#include <vector>

namespace spikeforge::tests {

struct CoveredKernel {
  jit::KernelSource source;
  int most_spilled;  // bytes stored and loaded
};

// The kernels that calls of predefined, traced and Loihi's cells use on a device of 132 multiprocessors, without
// duplicates. The list is deterministic.
std::vector<CoveredKernel> covering_list();

}  // namespace spikeforge::tests
