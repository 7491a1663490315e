// Clusters of blocks that a device has room for.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"

namespace spikeforge::kernels {

// Of so many blocks, each of so many bytes of shared memory: what the driver says of the device whose context is
// current. A device's multiprocessors are not all in one place, so that these are fewer than their number divided by
// the blocks.
int most_clusters(const jit::Device& device, int blocks, int bytes);

// For packs, which are recorded without a device: what devices of so many multiprocessors have had.
int usual_clusters(const jit::Device& device, int blocks, int bytes);

jit::KernelSource print_cluster_probe();

}  // namespace spikeforge::kernels
