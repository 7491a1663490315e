// Time-parallel passes over the whole GPU (cuda/scan/scan.cuh), if there are too few neurons to fill it: a forward scan
// over time, and a backward pass with several blocks for the same neurons. launch_multistep queries this plan first.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/multistep/schedule.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <cstdint>
#include <optional>

namespace spikeforge {

// The limit for a scan: the size of a map grows with the square of the states.
constexpr std::size_t most_scanned_states = 4;

// The composition of a traced cell's steps, as a separate cell, which a scan over time runs in addition to the cell.
// Returns the composition, which is computed once per cell. Throws GraphError if there is none: if a next state is not
// affine in the states, or if the cell has no states or more than most_scanned_states.
const TracedCell& composition_of(const TracedCell& cell);

namespace kernels {

struct ScanPlan {
  Schedule schedule;
  std::int64_t groups;  // the number of groups of a warp's neurons
  std::int64_t tiles;   // tiles of the sequence: the maximum number of blocks for the same neurons
};

// Returns std::nullopt if the plain loop is at least as fast, or if the cell does not fit.
std::optional<ScanPlan> plan_scan(const ForwardLaunch& launch, int multiprocessors);
std::optional<ScanPlan> plan_scan(const BackwardLaunch& launch, int multiprocessors);

jit::KernelSource print_scan(const ForwardLaunch& launch, const ScanPlan& plan);
jit::KernelSource print_scan(const BackwardLaunch& launch, const ScanPlan& plan);

void launch_scan(const ForwardLaunch& launch, const ScanPlan& plan, const jit::Device& device, void* stream,
                 const Allocate& allocate);
void launch_scan(const BackwardLaunch& launch, const ScanPlan& plan, const jit::Device& device, void* stream,
                 const Allocate& allocate);

}  // namespace kernels
}  // namespace spikeforge
