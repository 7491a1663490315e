#include <spikeforge/kernels/network/launch.h>

#include <algorithm>

namespace spikeforge::kernels {
namespace {

using network::Sending;

constexpr std::int64_t warp = 32;
constexpr std::int64_t most_argument_bytes = 32000;  // CUDA takes 32764

// Connections of a row that a block may send by itself: a multiprocessor adds to memory slowly, and the others wait.
constexpr std::int64_t most_own = 512;

std::int64_t whole_warps(std::int64_t threads) { return (threads + warp - 1) / warp * warp; }

Sending sending_of(const NetworkLaunch& launch, std::int64_t neurons) {
  const std::int64_t of_a_row = launch.arguments.matrix.nnz / std::max<std::int64_t>(neurons, 1);
  if (of_a_row <= most_own) return Sending::own;
  if (launch.least_delay > 1) return Sending::later;
  return launch.next_step / neurons <= most_own ? Sending::own_and_later : Sending::together;
}

// Whether a thread's numbers are few.
bool is_small(const NetworkLaunch& launch) {
  constexpr std::size_t most_numbers = 12;
  return launch.type == DType::f32 && std::ranges::all_of(launch.groups, [&](const NetworkGroup& group) {
           const Cell& cell = *group.launch->cell;
           const std::size_t driven = cell.inputs.size() * static_cast<std::size_t>(launch.drives);
           return cell.arguments() + cell.outputs.size() + driven <= most_numbers;
         });
}

// Of a block. Those of 512 have 128 registers each, of 768 have 80: enough for a usual neuron in float32, which 64 are
// not. A network whose neurons all fit on chip at once is the faster for it; of spikes that are sent by others than the
// neurons' threads there are to be some warps.
std::int64_t threads_of(const NetworkLaunch& launch, Sending sending, std::int64_t largest_share) {
  constexpr std::int64_t few = 512, some = 768, many = 1024, to_send = 128;
  if (!is_small(launch)) return few;
  const std::int64_t wanted = largest_share + (sending == Sending::own ? 0 : to_send);
  return wanted <= few ? few : wanted <= some ? some : many;
}

std::size_t argument_bytes(const NetworkLaunch& launch) {
  std::size_t bytes = sizeof launch.arguments;
  for (const NetworkGroup& group : launch.groups) {
    const Cell& cell = *group.launch->cell;
    constexpr std::size_t most_words_of_one = 4;
    bytes += 8 * (4 + max_surrogate_args + 6 + most_words_of_one * (cell.arguments() + cell.states.size() + 3));
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

  // Every group has a block at least, and the others as many as its neurons are of all.
  const std::int64_t spare = device.multiprocessors - std::ssize(launch.groups);
  std::int64_t largest = 0;
  for (const NetworkGroup& group : launch.groups) {
    const std::int64_t own = group.launch->neurons;
    const std::int64_t most_blocks = 1 + spare * own / neurons;
    const std::int64_t share = whole_warps((own + most_blocks - 1) / most_blocks);
    plan.groups.push_back({plan.blocks, share});
    plan.blocks += (own + share - 1) / share;
    largest = std::max(largest, share);
  }

  plan.threads = threads_of(launch, plan.sending, largest);
  plan.resident = largest <= plan.threads;
  // What goes later is sent by warps that have no neurons, as long as a half of them are left for what goes at once.
  const bool are_some_free =
      plan.resident && (plan.sending == Sending::own_and_later || plan.sending == Sending::later);
  plan.own_threads = are_some_free ? std::max(largest, plan.threads / 2) : plan.threads;
  constexpr std::int64_t at_once = 4 * warp;  // connections that a warp has on their way
  plan.pieces = std::clamp<std::int64_t>((launch.arguments.matrix.nnz / neurons + at_once - 1) / at_once, 1, 1024);
  return plan;
}

}  // namespace spikeforge::kernels
