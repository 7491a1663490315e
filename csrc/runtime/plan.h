// What a launch comes to on a device of so many multiprocessors: its schedule, and the spec of its kernel. Launches and
// the recorder of kernel packs ask here, so that a pack holds what a launch looks for.
#pragma once

#include <spikeforge/runtime/kernel_spec.h>
#include <spikeforge/runtime/loihi_spec.h>
#include <spikeforge/runtime/schedule.h>
#include <spikeforge/runtime/traced_spec.h>

namespace spikeforge::runtime {

template <class Spec>
struct Plan {
  Spec spec;
  Schedule schedule;
};

inline Plan<KernelSpec> plan(const ForwardLaunch& launch, int multiprocessors) {
  const Schedule schedule = forward_schedule(launch, multiprocessors);
  return {forward_spec(launch, schedule), schedule};
}

inline Plan<KernelSpec> plan(const BackwardLaunch& launch, int multiprocessors) {
  const Schedule schedule = backward_schedule(launch, multiprocessors);
  return {backward_spec(launch, schedule), schedule};
}

inline Plan<TracedSpec> plan(const TracedForwardLaunch& launch, int multiprocessors) {
  const Schedule schedule = forward_schedule(launch, multiprocessors);
  return {traced_spec(launch, schedule), schedule};
}

inline Plan<TracedSpec> plan(const TracedBackwardLaunch& launch, int multiprocessors) {
  const Schedule schedule = backward_schedule(launch, multiprocessors);
  return {traced_spec(launch, schedule), schedule};
}

inline Plan<LoihiSpec> plan(const LoihiLaunch& launch, int multiprocessors) {
  const Schedule schedule = forward_schedule(launch, multiprocessors);
  return {loihi_spec(launch, schedule), schedule};
}

}  // namespace spikeforge::runtime
