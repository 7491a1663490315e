// How a recurrent layer is laid over a GPU: the one place that chooses, and why.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/recurrent/geometry.h"
#include "csrc/kernels/recurrent/launch.h"

#include <cstdint>
#include <functional>
#include <optional>

namespace spikeforge::kernels {

// Returns the maximum number of resident clusters of a device, for this number of blocks and bytes of shared memory per
// block.
using MostClusters = std::function<int(int blocks, int bytes)>;

struct RecurrentSchedule {
  recurrent::Geometry geometry{};
  std::int64_t clusters = 0;

  unsigned blocks() const { return static_cast<unsigned>(clusters * geometry.blocks); }
};

// Returns nullopt if there is no kernel for such a call on such a device; the layer then runs step by step.
std::optional<RecurrentSchedule> schedule_of(const RecurrentForwardLaunch& launch, const jit::Device& device,
                                             const MostClusters& most_clusters);
std::optional<RecurrentSchedule> schedule_of(const RecurrentBackwardLaunch& launch, const jit::Device& device,
                                             const MostClusters& most_clusters);

// Shared memory that a block may have.
int most_shared_bytes(const jit::Device& device);

// The number of clusters of this size (blocks, bytes of shared memory each) that the device of the current context can
// hold at once, as reported by the driver. A cluster cannot span all multiprocessors, so there are fewer than the
// multiprocessors divided by the blocks.
int most_clusters(const jit::Device& device, int blocks, int bytes);

// For packs, which are recorded without a device: measured values for devices by their number of multiprocessors.
int usual_clusters(const jit::Device& device, int blocks, int bytes);

jit::KernelSource print_cluster_probe();

}  // namespace spikeforge::kernels
