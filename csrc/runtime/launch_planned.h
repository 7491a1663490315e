// The last step of a launch, for predefined, traced and Loihi's cells.
#pragma once

#include <spikeforge/runtime/arguments.h>
#include <spikeforge/runtime/multistep_launch.h>
#include <spikeforge/runtime/plan.h>
#include <spikeforge/runtime/spec_table.h>

namespace spikeforge::runtime {

template <class Launch>
void launch_planned(const Launch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  const auto [spec, schedule] = plan(launch, device.multiprocessors);
  const LoadedKernel& kernel = SpecTable<std::remove_const_t<decltype(spec)>>::of(device).get(spec, device);
  const Grid grid = grid_of(schedule, launch.neurons, device.multiprocessors);
  const Arguments arguments(launch);
  kernel.launch({static_cast<unsigned>(grid.blocks), 1, 1}, grid.block, 0, stream, arguments.data(), arguments.bytes());
}

}  // namespace spikeforge::runtime
