#include "csrc/kernels/network/launch.h"

#include <algorithm>

namespace spikeforge::kernels {
namespace {

using network::Sending;

constexpr std::int64_t warp = 32;
constexpr std::int64_t most_argument_bytes = 32000;  // CUDA accepts 32764

// The maximum number of connections of a row that a block sends alone: a single multiprocessor adds to memory slowly,
// while the others wait.
constexpr std::int64_t most_own = 512;

std::int64_t whole_warps(std::int64_t threads) { return (threads + warp - 1) / warp * warp; }

// Returns the number of steps of a round (cuda/network/rounds.cuh): half of the least delay, but no more than needed to
// make the barrier short compared to the steps, and few enough to keep the lists for spikes of all neurons small.
std::int64_t round_of(const NetworkLaunch& launch, std::int64_t neurons) {
  constexpr std::int64_t most = 32, most_listed = std::int64_t{1} << 25;
  if (launch.has_peers() || launch.arguments.matrix.nnz == 0) return 1;
  return std::clamp<std::int64_t>(std::min(launch.least_delay / 2, most_listed / neurons), 1, most);
}

Sending sending_of(const NetworkLaunch& launch, std::int64_t neurons) {
  if (launch.has_peers()) return Sending::together;  // the spikes of all ranks are sent after one barrier
  if (round_of(launch, neurons) > 1) return Sending::in_rounds;
  const std::int64_t rows = std::max<std::int64_t>(launch.arguments.copy_size, 1);
  const std::int64_t of_a_row = launch.arguments.matrix.nnz / rows;
  if (of_a_row <= most_own) return Sending::own;
  if (launch.next_step == 0) return Sending::later;
  return launch.next_step / rows <= most_own ? Sending::own_and_later : Sending::together;
}

// Divides the neurons of a group among at most `blocks` blocks: at least one chunk of each copy.
NetworkPlan::Share share_of(std::int64_t neurons, std::int64_t copies, std::int64_t blocks) {
  // If there are fewer blocks than copies, smaller chunks divide them more evenly.
  constexpr std::int64_t most_chunks = 8;
  std::int64_t chunks = std::max<std::int64_t>(blocks / copies, 1);
  const auto time = [&](std::int64_t count) {
    return (copies * count + blocks - 1) / blocks * whole_warps((neurons + count - 1) / count);
  };
  for (std::int64_t count = 2; copies > blocks && count <= most_chunks; ++count)
    if (time(count) < time(chunks)) chunks = count;
  NetworkPlan::Share share{.neurons = whole_warps((neurons + chunks - 1) / chunks)};
  share.chunks = (neurons + share.neurons - 1) / share.neurons;
  share.blocks = std::min(copies * share.chunks, blocks);
  return share;
}

// Returns the number of 4-byte registers for the values of a neuron that a thread keeps between steps.
std::int64_t kept_numbers(const NetworkLaunch& launch) {
  std::size_t most = 0;
  for (const NetworkGroup& group : launch.groups) {
    const Cell& cell = *group.launch->cell;
    most = std::max(most, cell.states.size() + cell.params.size() +
                              cell.inputs.size() * (1 + static_cast<std::size_t>(launch.drives)));
  }
  return static_cast<std::int64_t>(most * size_of(launch.type) / 4);
}

struct Threads {
  std::int64_t block = 0;
  std::int64_t registers = 0;  // per thread, for the kept values of its neurons
};
// The more neurons a thread steps, the more of its reads are in flight at once; but a block of few threads hides less
// latency, and has no free warps to send later connections. Therefore the largest block that fits all neurons is
// preferred.
constexpr Threads choices[] = {{768, 12}, {512, 48}};

std::size_t argument_bytes(const NetworkLaunch& launch) {
  std::size_t bytes = sizeof launch.arguments;
  for (const NetworkGroup& group : launch.groups) {
    const Cell& cell = *group.launch->cell;
    constexpr std::size_t most_words_of_one = 4;
    bytes += 8 * (6 + max_surrogate_args + 6 + most_words_of_one * (cell.arguments() + cell.states.size() + 3));
  }
  return bytes;
}

}  // namespace

std::optional<NetworkPlan> plan_of(const NetworkLaunch& launch, const jit::Device& device) {
  if (launch.drives > network::most_drives || launch.groups.empty() ||
      std::ssize(launch.groups) > device.multiprocessors || argument_bytes(launch) > most_argument_bytes)
    return std::nullopt;
  std::int64_t neurons = 0;
  for (const NetworkGroup& group : launch.groups) neurons += group.launch->neurons;
  NetworkPlan plan;
  plan.sending = sending_of(launch, neurons);
  plan.round = round_of(launch, neurons);

  // Every group has at least one block. The other blocks are distributed in proportion to the numbers of neurons.
  const std::int64_t spare = device.multiprocessors - std::ssize(launch.groups);
  std::int64_t largest = 0;
  bool has_one_chunk = true;  // each block
  for (const NetworkGroup& group : launch.groups) {
    const std::int64_t own = group.launch->neurons / launch.copies();
    NetworkPlan::Share share = share_of(own, launch.copies(), 1 + spare * group.launch->neurons / neurons);
    share.first_block = plan.blocks;
    plan.groups.push_back(share);
    plan.blocks += share.blocks;
    largest = std::max(largest, share.neurons);
    has_one_chunk = has_one_chunk && share.blocks == share.chunks * launch.copies();
  }

  // Warps without neurons send later connections. In small blocks, half of the warps are reserved for connections that
  // are sent immediately.
  constexpr std::int64_t to_send = 128, most_width = 8;
  const bool is_sent_later =
      plan.sending == Sending::own_and_later || plan.sending == Sending::later || plan.is_in_rounds();
  const std::int64_t of_one = std::max<std::int64_t>(kept_numbers(launch), 1);
  for (const Threads& choice : choices) {
    const std::int64_t owners = choice.block - (is_sent_later ? to_send : 0);
    plan.threads = choice.block;
    plan.width = (largest + owners - 1) / owners;
    plan.resident = has_one_chunk && plan.width <= most_width && plan.width * of_one <= choice.registers;
    if (plan.resident) break;
  }
  if (!plan.resident) plan.width = std::clamp<std::int64_t>(choices[1].registers / 2 / of_one, 1, 4);
  plan.skips = launch.may_skip && plan.is_in_rounds() && !plan.resident;
  if (plan.skips) {  // a list has neurons without order
    plan.width = 1;
    plan.threads = choices[1].block;
  }
  plan.own_threads = plan.threads;
  if (plan.resident && is_sent_later)
    plan.own_threads = std::max(whole_warps((largest + plan.width - 1) / plan.width), plan.threads / 2);
  constexpr std::int64_t at_once = 4 * warp;  // connections in flight per warp
  const std::int64_t rows = launch.has_peers() ? launch.arguments.whole : launch.arguments.copy_size;
  plan.pieces = std::clamp<std::int64_t>((launch.arguments.matrix.nnz / rows + at_once - 1) / at_once, 1, 1024);
  return plan;
}

}  // namespace spikeforge::kernels
