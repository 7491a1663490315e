#include "csrc/simulation/internal/gpu_exchange.h"
#include "csrc/base/environment.h"
#include "csrc/base/hash.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#if defined(SPIKEFORGE_WITH_CUDA)
#include "ops/common/on_stream.h"
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace spikeforge::simulation {
namespace {

constexpr std::int64_t first_room = 4096;  // spikes per block and rank

// Returns a number that differs between hosts, and between containers of one host with different names.
std::int64_t number_of_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  const std::string id{std::istreambuf_iterator<char>(boot), {}};
  return static_cast<std::int64_t>(hash128({name.data(), id}).low >> 1);
}

// True if all ranks have the same non-negative number.
bool agree(CallGuard& guard, std::int64_t own) {
  const std::vector<Numbers> received = guard.gather_notices(Topic::shared_memory, [&] { return Numbers{own}; });
  return own >= 0 && std::ranges::all_of(received, [&](const auto& rank) { return rank[0] == own; });
}

// Returns the size of network::Peers.
std::int64_t bytes_of(std::int64_t ranks, std::int64_t room) {
  return 2 * ranks * static_cast<std::int64_t>(sizeof(std::uint64_t) + room * sizeof(std::uint32_t));
}

}  // namespace

GpuExchange::GpuExchange(NetworkState& state, CallGuard& guard, const kernels::NetworkLaunch& steps)
    : ranks_(guard.shared_by()), steps_(steps), options_(state.options()), side_(state.options().device()) {
  using Slices = std::vector<std::vector<Slice>>;
  const Slices slices = guard.is_shared() ? guard.exchange().slices() : Slices{{Slice{0, state.partition.whole(), 0}}};
  std::vector<std::int64_t> neurons;
  for (const std::vector<Slice>& rank : slices) neurons.push_back(neurons_of(rank));
  const std::int64_t most = std::max<std::int64_t>(*std::ranges::max_element(neurons), 1);
  at::Tensor numbers = at::zeros({std::ssize(slices), most}, at::kInt);
  for (std::size_t rank = 0; rank < slices.size(); ++rank)
    for (const Slice& slice : slices[rank])
      numbers[static_cast<std::int64_t>(rank)]
          .slice(0, slice.first, slice.first + slice.size())
          .copy_(at::arange(slice.begin, slice.end, at::kInt));
  numbers_ = numbers.to(options_.device());
  neurons_ = at::tensor(neurons, at::kLong).to(options_.device());
  most_ = at::zeros({1}, options_.dtype(at::kInt));

  const Connectivity& matrix = state.matrix;
  network::Arguments& net = arguments_.network;
  net = steps.arguments;
  net.matrix.indptr = matrix.indptr.const_data_ptr<std::int64_t>() + state.copy_size;
  net.matrix.rows = net.whole = state.partition.whole();
  net.matrix.nnz = matrix.indices.numel() - matrix.indptr[state.copy_size].item<std::int64_t>();
  net.near = nullptr;
  arguments_.numbers = numbers_.const_data_ptr<int>();
  arguments_.neurons = static_cast<const network::Int*>(neurons_.const_data_ptr());
  arguments_.ranks = std::ssize(slices);
  arguments_.most_neurons = most;
  arguments_.left_out = -1;
  arguments_.most = static_cast<unsigned*>(most_.mutable_data_ptr());
  make_room(first_room);
}

void GpuExchange::make_room(std::int64_t spikes) {
  const auto words = options_.dtype(at::kInt);
  own_ = at::zeros({1 + spikes}, words);
  all_ = ranks_ == nullptr ? own_ : at::zeros({arguments_.ranks, 1 + spikes}, words);
  arguments_.network.room = spikes;
  arguments_.received = arguments_.network.received = static_cast<unsigned*>(own_.mutable_data_ptr());
  arguments_.all = static_cast<const unsigned*>(all_.const_data_ptr());
}

void GpuExchange::say_where(network::Arguments& steps) const {
  steps.received = arguments_.network.received;
  steps.room = arguments_.network.room;
}

bool GpuExchange::overflowed() {
  const auto most = most_.item<std::int32_t>();
  most_.zero_();
  if (most == 0) return false;
  make_room(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(most) + 1)));
  return true;
}

#if defined(SPIKEFORGE_WITH_CUDA)
// Sends this rank's own spikes while those of other ranks are in flight.
void GpuExchange::run(std::int64_t steps) {
  const c10::DeviceGuard guard(own_.device());
  const jit::Device& device = ops::gpu_of(own_);
  arguments_.steps = steps;
  if (ranks_ == nullptr) return kernels::send(steps_, arguments_, device, ops::stream_of(own_));
  const std::int64_t rank = ranks_->rank();
  network::ExchangeArguments own = arguments_, others = arguments_;
  own.all = arguments_.received;
  own.received = nullptr;
  own.ranks = 1;
  own.numbers += rank * arguments_.most_neurons;
  own.neurons += rank;
  others.left_out = rank;
  side_.run([&] { kernels::send(steps_, own, device, ops::stream_of(own_)); });
  all_gather(*ranks_, own_, all_, "the spikes");
  side_.join();
  kernels::send(steps_, others, device, ops::stream_of(own_));
}
#else
void GpuExchange::run(std::int64_t) {}
#endif

std::unique_ptr<PeerExchange> PeerExchange::make(NetworkState& state, CallGuard& guard) {
  Ranks& ranks = *guard.shared_by();
  const c10::Device device = state.options().device();
  const bool wanted = environment("SPIKEFORGE_PEER_MEMORY") != "0" && ranks.size() <= network::most_peers;
  if (!agree(guard, wanted ? number_of_host() : -1)) return nullptr;
  const std::int64_t room = guard.exchange().most_neurons();
  SharedMemory memory = ranks.share_memory(bytes_of(ranks.size(), room), device);
  if (!agree(guard, memory.of_rank.empty() ? -1 : 0)) return nullptr;
  return std::unique_ptr<PeerExchange>(new PeerExchange(state, guard, std::move(memory), room));
}

PeerExchange::PeerExchange(NetworkState& state, CallGuard& guard, SharedMemory memory, std::int64_t room)
    : ranks_(guard.shared_by()), memory_(std::move(memory)) {
  const at::TensorOptions options = state.options();
  std::vector<std::int64_t> addresses;
  for (void* const address : memory_.of_rank) addresses.push_back(reinterpret_cast<std::int64_t>(address));
  addresses_ = at::tensor(addresses, at::kLong).to(options.device());
  exchanges_ = at::zeros({1}, options.dtype(at::kLong));
  missing_ = at::zeros({1}, options.dtype(at::kInt));
  peers_ = {.ranks = ranks_->size(),
            .rank = ranks_->rank(),
            .memory = static_cast<char* const*>(addresses_.const_data_ptr()),
            .room = room,
            .has_own = state.matrix.indptr[state.copy_size].item<std::int64_t>() > 0 ? 1 : 0,
            .exchanges = static_cast<network::Int*>(exchanges_.mutable_data_ptr()),
            .wait = static_cast<unsigned long long>(std::chrono::nanoseconds(ranks_->patience()).count()),
            .missing = missing_.mutable_data_ptr<int>()};
}

void PeerExchange::check() {
  const auto missing = missing_.item<std::int32_t>();
  TORCH_CHECK(missing == 0, "Network: rank ", ranks_->rank(), " of ", ranks_->size(),
              " did not get the spikes of rank ", missing - 1,
              ", which failed, is late or made a different call, within ", ranks_->patience().count(), " ms");
}

}  // namespace spikeforge::simulation
