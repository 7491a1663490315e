// The plan of a launch on a device with a number of multiprocessors: its schedule, and the spec of its kernel. Launches
// and the recorder of kernel packs use the same plan, so a pack contains the kernels that a launch looks up.
#pragma once

#include "csrc/kernels/multistep/schedule.h"
#include "csrc/kernels/multistep/spec.h"

namespace spikeforge::kernels {

struct Plan {
  Schedule schedule;
  KernelSpec spec;
  std::int64_t at_once;  // the neurons of one turn
};

template <class AnyLaunch>  // forward or backward
Plan plan(const AnyLaunch& launch, int multiprocessors) {
  const Schedule schedule = schedule_of(launch, multiprocessors);
  return {schedule, spec_of(launch, schedule), neurons_at_once(launch, schedule, multiprocessors)};
}

// Returns the kernel that the backward pass of a launch will most likely need: gradients arrive row by row for all
// outputs, as from a subsequent layer, and for no state. Reads launch.to_come.
KernelSpec foretold_backward(const ForwardLaunch& launch, int multiprocessors);

// Starts to compile the kernel of the backward pass, if there will be one. Called if the kernel of the launch has to be
// compiled.
void prepare_next(const ForwardLaunch& launch, const jit::Device& device);
inline void prepare_next(const BackwardLaunch&, const jit::Device&) {}

}  // namespace spikeforge::kernels
