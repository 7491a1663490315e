#include <spikeforge/runtime/launch_planned.h>

namespace spikeforge::runtime {

void launch(const ForwardLaunch& launch, const Device& device, void* stream) { launch_planned(launch, device, stream); }
void launch(const BackwardLaunch& launch, const Device& device, void* stream) {
  launch_planned(launch, device, stream);
}

}  // namespace spikeforge::runtime
