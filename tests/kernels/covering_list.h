// A covering list: launches in which every pair of values of any two options occurs at least once.
#pragma once

#include "csrc/jit/kernel_cache.h"

#include <vector>

namespace spikeforge::tests {

struct CoveredKernel {
  jit::KernelSource source;
  int most_spilled;  // bytes stored and loaded
};

// Kernels of predefined, traced and Loihi's cells as calls make them, on a device of 132 multiprocessors; without
// duplicates, always the same.
std::vector<CoveredKernel> covering_list();

}  // namespace spikeforge::tests
