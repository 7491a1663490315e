// Clusters of blocks that a device has room for.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"

namespace spikeforge::kernels {

// The number of clusters of this size (blocks, bytes of shared memory each) that the device of the current context can
// hold at once, as reported by the driver. A cluster cannot span all multiprocessors, so there are fewer than the
// multiprocessors divided by the blocks.
int most_clusters(const jit::Device& device, int blocks, int bytes);

// For packs, which are recorded without a device: measured values for devices by their number of multiprocessors.
int usual_clusters(const jit::Device& device, int blocks, int bytes);

jit::KernelSource print_cluster_probe();

}  // namespace spikeforge::kernels
