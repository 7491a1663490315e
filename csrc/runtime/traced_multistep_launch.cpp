#include <spikeforge/runtime/launch_planned.h>
#include <spikeforge/runtime/traced_multistep_launch.h>

namespace spikeforge::runtime {

void launch(const TracedForwardLaunch& launch, const Device& device, void* stream) {
  launch_planned(launch, device, stream);
}
void launch(const TracedBackwardLaunch& launch, const Device& device, void* stream) {
  launch_planned(launch, device, stream);
}

}  // namespace spikeforge::runtime
