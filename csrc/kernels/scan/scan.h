// Time-parallel passes over the whole GPU (cuda/scan/scan.cuh), for neurons too few to fill it: a scan over time
// forward, and a backward pass of many blocks for the same neurons. launch_multistep queries this plan first.
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/multistep/schedule.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <cstdint>
#include <optional>

namespace spikeforge {

// The limit for a scan: a map has the square of the states.
constexpr std::size_t most_scanned_states = 4;

// The composition of a traced cell's steps, as a cell of its own: what a scan over time runs beside the cell. Computed
// once. Throws GraphError with the reason if there is none: a next state that is not affine in the states, no
// states, or more than most_scanned_states.
const TracedCell& composition_of(const TracedCell& cell);

namespace kernels {

struct ScanPlan {
  Schedule schedule;
  std::int64_t groups;  // of a warp's neurons
  std::int64_t tiles;   // of the sequence: blocks of the same neurons at most
};

// Nothing where the loop alone is at least as fast, or the cell does not fit.
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
