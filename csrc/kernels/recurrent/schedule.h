// The distribution of a recurrent layer over a GPU: the only place that chooses it, with the reasons.
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

// Returns the number of clusters of this size (blocks, bytes of shared memory per block) that can be resident at once
// on the device of the current context, as reported by the driver. It is less than the number of multiprocessors
// divided by `blocks`, since a cluster cannot span arbitrary multiprocessors.
int most_clusters(const jit::Device& device, int blocks, int bytes);

// Returns measured values, scaled by the number of multiprocessors, for packs, which are recorded without a device.
int usual_clusters(const jit::Device& device, int blocks, int bytes);

jit::KernelSource print_cluster_probe();

}  // namespace spikeforge::kernels
