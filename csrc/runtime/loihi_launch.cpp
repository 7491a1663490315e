#include <spikeforge/runtime/launch_spec.h>
#include <spikeforge/runtime/loihi_launch.h>
#include <spikeforge/runtime/loihi_spec.h>

namespace spikeforge::runtime {

void launch(const LoihiLaunch& launch, const Device& device, void* stream) {
  if (launch.neurons == 0) return;
  const Schedule schedule = forward_schedule(launch, device.multiprocessors);
  launch_spec(loihi_spec(launch, schedule), schedule, launch, device, stream);
}

}  // namespace spikeforge::runtime
