// Spikes between ranks or areas, of a network on a GPU, whose steps one kernel walks over. Nothing waits for the host:
// a list has room for so many spikes, and who has looked at what is recorded asks whether that was enough.
#pragma once

#include "csrc/kernels/network/launch.h"
#include "csrc/simulation/internal/running.h"
#include "csrc/simulation/internal/side_stream.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace spikeforge::simulation {

class GpuExchange {
 public:
  // `steps` is what the kernel of the steps is launched with, which outlives it.
  GpuExchange(Running& running, const kernels::NetworkLaunch& steps);

  // Where the kernel of the steps is to list its spikes.
  void say_where(network::Arguments& steps) const;

  // Of the steps that were last, so many of them.
  void run(std::int64_t steps);

  // Whether a list was too short since the last call, on any rank: then there is more room from here on. Waits.
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
