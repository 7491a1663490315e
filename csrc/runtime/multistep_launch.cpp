#include <spikeforge/runtime/arguments.h>
#include <spikeforge/runtime/kernel_spec.h>
#include <spikeforge/runtime/multistep_launch.h>
#include <spikeforge/runtime/spec_table.h>

namespace spikeforge::runtime {
namespace {

template <class Launch>
void launch_spec(const KernelSpec& spec, const Launch& launch, const Device& device, void* stream) {
  const LoadedKernel& kernel = SpecTable::of(device).get(spec, device);
  const Grid grid = grid_of(spec.schedule, launch.neurons, device.multiprocessors);
  const Arguments arguments(launch);
  kernel.launch({static_cast<unsigned>(grid.blocks), 1, 1}, grid.block, 0, stream, arguments.data(), arguments.bytes());
}

}  // namespace

void launch(const ForwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  launch_spec(forward_spec(launch, forward_schedule(launch, device.multiprocessors)), launch, device, stream);
}

void launch(const BackwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  launch_spec(backward_spec(launch, backward_schedule(launch, device.multiprocessors)), launch, device, stream);
}

}  // namespace spikeforge::runtime
