#include <spikeforge/runtime/launch_planned.h>
#include <spikeforge/runtime/loihi_launch.h>

namespace spikeforge::runtime {

void launch(const LoihiLaunch& launch, const Device& device, void* stream) { launch_planned(launch, device, stream); }

}  // namespace spikeforge::runtime
