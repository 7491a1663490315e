// Exchanges spikes between ranks or areas, for a network on a GPU whose steps run in one kernel. Nothing waits for the
// host: a list has space for a number of spikes, and the reader of the recording checks that it was sufficient.
#pragma once

#include "csrc/kernels/network/launch.h"
#include "csrc/simulation/internal/gpu_streams.h"
#include "csrc/simulation/internal/running.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace spikeforge::simulation {

class GpuExchange {
 public:
  // `steps` is what the kernel of the steps is launched with, which outlives it.
  GpuExchange(Running& running, const kernels::NetworkLaunch& steps);

  // Sets the lists of spikes in the arguments of the steps' kernel.
  void say_where(network::Arguments& steps) const;

  // Exchanges the spikes of the last `steps` steps.
  void run(std::int64_t steps);

  // True if a list of any rank was too short since the last call: then the lists are enlarged. Synchronises.
  bool overflowed();

 private:
  void make_room(std::int64_t spikes);

  const std::shared_ptr<Ranks> ranks_;
  const kernels::NetworkLaunch& steps_;
  const at::TensorOptions options_;
  at::Tensor numbers_, neurons_, own_, all_, most_;
  SideStream side_;
  network::ExchangeArguments arguments_{};
};

}  // namespace spikeforge::simulation
