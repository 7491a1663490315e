#include <spikeforge/runtime/kernel_spec.h>
#include <spikeforge/runtime/launch_spec.h>
#include <spikeforge/runtime/multistep_launch.h>

namespace spikeforge::runtime {

void launch(const ForwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  const Schedule schedule = forward_schedule(launch, device.multiprocessors);
  launch_spec(forward_spec(launch, schedule), schedule, launch, device, stream);
}

void launch(const BackwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  const Schedule schedule = backward_schedule(launch, device.multiprocessors);
  launch_spec(backward_spec(launch, schedule), schedule, launch, device, stream);
}

}  // namespace spikeforge::runtime
