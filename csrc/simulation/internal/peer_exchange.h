// Spikes between ranks whose GPUs write to each other's memory, exchanged by the kernel that steps the network.
#pragma once

#include "csrc/kernels/network/arguments.h"
#include "csrc/simulation/internal/running.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace spikeforge::simulation {

class PeerExchange {
 public:
  // Collective. Returns null if the ranks are on several hosts, if their GPUs have no peer access, or if a rank has
  // SPIKEFORGE_PEER_MEMORY=0.
  static std::unique_ptr<PeerExchange> make(Running& running);

  const network::Peers& peers() const { return peers_; }

  // Throws c10::Error where a rank did not come in time. Waits for the steps that were launched.
  void check();

 private:
  PeerExchange(Running& running, SharedMemory memory, std::int64_t room);

  const std::shared_ptr<Ranks> ranks_;
  const SharedMemory memory_;
  at::Tensor addresses_, exchanges_, missing_;
  network::Peers peers_{};
};

}  // namespace spikeforge::simulation
