// The last step of a launch, for predefined and for traced cells.
#pragma once

#include <spikeforge/runtime/arguments.h>
#include <spikeforge/runtime/multistep_launch.h>
#include <spikeforge/runtime/schedule.h>
#include <spikeforge/runtime/spec_table.h>

namespace spikeforge::runtime {

template <class Spec, class Launch>
void launch_spec(const Spec& spec, const Schedule& schedule, const Launch& launch, const Device& device, void* stream) {
  const LoadedKernel& kernel = SpecTable<Spec>::of(device).get(spec, device);
  const Grid grid = grid_of(schedule, launch.neurons, device.multiprocessors);
  const Arguments arguments(launch);
  kernel.launch({static_cast<unsigned>(grid.blocks), 1, 1}, grid.block, 0, stream, arguments.data(), arguments.bytes());
}

}  // namespace spikeforge::runtime
