#include <spikeforge/runtime/launch_spec.h>
#include <spikeforge/runtime/traced_multistep_launch.h>
#include <spikeforge/runtime/traced_spec.h>

namespace spikeforge::runtime {

void launch(const TracedForwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  const Schedule schedule = forward_schedule(launch, device.multiprocessors);
  launch_spec(traced_spec(launch, schedule), schedule, launch, device, stream);
}

void launch(const TracedBackwardLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  const Schedule schedule = backward_schedule(launch, device.multiprocessors);
  launch_spec(traced_spec(launch, schedule), schedule, launch, device, stream);
}

}  // namespace spikeforge::runtime
