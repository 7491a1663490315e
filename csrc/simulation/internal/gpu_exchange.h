// Spikes between ranks or areas, of a network on a GPU, whose steps one kernel walks over. Nothing waits for the host:
// a list has room for so many spikes, and who has looked at what is recorded asks whether that was enough.
#pragma once

#include <spikeforge/kernels/network/launch.h>
#include <spikeforge/simulation/internal/running.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace spikeforge::simulation {

class GpuExchange {
 public:
  // `steps` is what the kernel of the steps is launched with, which outlives it.
  GpuExchange(Running& running, const kernels::NetworkLaunch& steps);

  // Of so many steps behind the network's, in which those fired: bool [steps, own neurons].
  void run(const at::Tensor& fired);

  // Whether a list was too short since the last call, on any rank: then there is more room from here on. Waits.
  bool overflowed();

 private:
  void make_room(std::int64_t spikes);

  const std::shared_ptr<Ranks> ranks_;
  const kernels::NetworkLaunch& steps_;
  const at::TensorOptions options_;
  at::Tensor near_, numbers_, neurons_, own_, all_, most_;
  network::ExchangeArguments arguments_{};
};

}  // namespace spikeforge::simulation
