// A network of populations as one kernel that loops over its steps (cuda/network/network.cuh).
#pragma once

#include "csrc/jit/device.h"
#include "csrc/jit/kernel_cache.h"
#include "csrc/kernels/event/product.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/kernels/network/arguments.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace spikeforge::kernels {

// Neighbouring neurons of one cell in all copies, starting at index `begin` of the network: a launch of one step, whose
// states are both initial values and results, and whose inputs and outputs are not read. A cell that draws random
// numbers has a seed for each copy in the GPU's memory, if there are several.
struct NetworkGroup {
  const ForwardLaunch* launch = nullptr;
  std::int64_t begin = 0;
};

// `arguments` lacks the members that the plan sets, and those of a call of steps. With peers, the rows of the neurons
// of all ranks, whose connections lead to own neurons, follow the rows of own neurons.
struct NetworkLaunch {
  DType type{};  // float32 or float64
  std::span<const NetworkGroup> groups;
  event::Weights weights;
  event::Delays delays{};
  std::int64_t next_step = 0;    // the number of connections of delay 1
  std::int64_t least_delay = 1;  // of own connections
  std::int64_t arriving = 0;     // connections lead to the first inputs of neurons, this many
  int drives = 0;
  bool may_skip = false;  // true if kernels may skip neurons that rest
  network::Arguments arguments{};

  bool has_peers() const { return arguments.peers.ranks > 0; }
  bool has_copies() const { return arguments.size != arguments.copy_size; }
  std::int64_t copies() const { return has_copies() ? arguments.size / arguments.copy_size : 1; }
};

// The distribution of a network over a GPU: the only place that chooses it, with the reasons.
struct NetworkPlan {
  network::Sending sending{};
  bool resident = false;     // true if a block's neurons stay in the registers of its threads
  std::int64_t threads = 0;  // of a block
  std::int64_t width = 1;    // neurons per thread, in groups of at least 32 * width neurons; else 1
  std::int64_t blocks = 0;
  bool skips = false;                                   // true if neurons that rest are skipped, in rounds
  std::int64_t own_threads = 0, pieces = 1, round = 1;  // network::Arguments
  // The neurons of a copy in a group are divided into chunks, and the chunks of all copies among blocks.
  struct Share {
    std::int64_t first_block = 0, blocks = 0, neurons = 0, chunks = 1;  // neurons of a chunk
  };
  std::vector<Share> groups;

  bool is_in_rounds() const { return sending == network::Sending::in_rounds; }
  // Returns the number of lists of spikes, and the spikes for which each has room.
  std::int64_t lists() const { return is_in_rounds() ? 2 : 3; }
  std::int64_t most_listed(std::int64_t neurons) const { return round * neurons; }

  // Returns the width for a group of this size.
  std::int64_t width_of(std::int64_t neurons) const { return neurons < 32 * width ? 1 : width; }
};

// Returns nullopt if the network does not fit one kernel: it has more kinds of neuron than blocks, too many drives or
// too many arguments.
std::optional<NetworkPlan> plan_of(const NetworkLaunch& launch, const jit::Device& device);

jit::KernelSource print_source(const NetworkLaunch& launch, const NetworkPlan& plan);

// Moves the connections of delay 1 to the front of each row, and writes their number to `near`. A weight has
// `weight_bytes` bytes, a delay `delay_bytes`. If weight_bytes is 0, weights are not moved.
void bring_near_first(const network::NearArguments& arguments, int weight_bytes, int delay_bytes,
                      const jit::Device& device, void* stream);
jit::KernelSource print_near_first(int weight_bytes, int delay_bytes);

// Sends the spikes of all ranks, after the steps of a network that ranks share. `exchange.network` lacks the members
// that `launch` has.
jit::KernelSource print_send(const NetworkLaunch& launch);
void send(const NetworkLaunch& launch, const network::ExchangeArguments& exchange, const jit::Device& device,
          void* stream);

// Launches the steps in `launch.arguments`, asynchronously. The device must be current.
void launch_network(const NetworkLaunch& launch, const NetworkPlan& plan, const jit::LoadedKernel& kernel,
                    void* stream);

}  // namespace spikeforge::kernels
