// Exchanges of spikes between ranks or areas, for a network on a GPU whose steps run in one kernel.
#pragma once

#include "csrc/kernels/network/launch.h"
#include "csrc/simulation/internal/call_guard.h"
#include "csrc/simulation/internal/gpu_streams.h"
#include "csrc/simulation/internal/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace spikeforge::simulation {

// Exchanges lists of spikes after blocks of steps. Nothing waits for the host: a list has space for a number of spikes,
// and the reader of the recording checks that it was sufficient.
class GpuExchange {
 public:
  // `steps` is the launch of the kernel of the steps, and must outlive this object.
  GpuExchange(NetworkState& state, CallGuard& guard, const kernels::NetworkLaunch& steps);

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

// Spikes between ranks whose GPUs write to each other's memory, exchanged by the kernel that steps the network.
class PeerExchange {
 public:
  // Collective. Returns null if the ranks are on several hosts, if their GPUs have no peer access, or if a rank has
  // SPIKEFORGE_PEER_MEMORY=0.
  static std::unique_ptr<PeerExchange> make(NetworkState& state, CallGuard& guard);

  const network::Peers& peers() const { return peers_; }

  // Waits for the steps that were launched. Throws c10::Error if a rank did not arrive in time.
  void check();

 private:
  PeerExchange(NetworkState& state, CallGuard& guard, SharedMemory memory, std::int64_t room);

  const std::shared_ptr<Ranks> ranks_;
  const SharedMemory memory_;
  at::Tensor addresses_, exchanges_, missing_;
  network::Peers peers_{};
};

}  // namespace spikeforge::simulation
