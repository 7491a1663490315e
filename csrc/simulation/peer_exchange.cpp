#include "csrc/simulation/internal/peer_exchange.h"
#include "csrc/base/environment.h"
#include "csrc/base/hash.h"
#include "csrc/simulation/internal/notices.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace spikeforge::simulation {
namespace {

// Different for hosts, and for containers of one that have names of their own.
std::int64_t number_of_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  const std::string id{std::istreambuf_iterator<char>(boot), {}};
  return static_cast<std::int64_t>(hash128({name.data(), id}).low >> 1);
}

// True if all ranks have the same number, and it is not negative.
bool agree(Running& running, std::int64_t own) {
  const std::vector<Numbers> received = running.gather_notices(Topic::shared_memory, [&] { return Numbers{own}; });
  return own >= 0 && std::ranges::all_of(received, [&](const auto& rank) { return rank[0] == own; });
}

// The size of network::Peers.
std::int64_t bytes_of(std::int64_t ranks, std::int64_t room) {
  return 2 * ranks * static_cast<std::int64_t>(sizeof(std::uint64_t) + room * sizeof(std::uint32_t));
}

}  // namespace

std::unique_ptr<PeerExchange> PeerExchange::make(Running& running) {
  Ranks& ranks = *running.shared_by();
  const c10::Device device = running.options().device();
  const bool wanted = environment("SPIKEFORGE_PEER_MEMORY") != "0" && ranks.size() <= network::most_peers;
  if (!agree(running, wanted ? number_of_host() : -1)) return nullptr;
  const std::int64_t room = running.exchange().most_neurons();
  SharedMemory memory = ranks.share_memory(bytes_of(ranks.size(), room), device);
  if (!agree(running, memory.of_rank.empty() ? -1 : 0)) return nullptr;
  return std::unique_ptr<PeerExchange>(new PeerExchange(running, std::move(memory), room));
}

PeerExchange::PeerExchange(Running& running, SharedMemory memory, std::int64_t room)
    : ranks_(running.shared_by()), memory_(std::move(memory)) {
  const at::TensorOptions options = running.options();
  std::vector<std::int64_t> addresses;
  for (void* const address : memory_.of_rank) addresses.push_back(reinterpret_cast<std::int64_t>(address));
  addresses_ = at::tensor(addresses, at::kLong).to(options.device());
  exchanges_ = at::zeros({1}, options.dtype(at::kLong));
  missing_ = at::zeros({1}, options.dtype(at::kInt));
  peers_ = {.ranks = ranks_->size(),
            .rank = ranks_->rank(),
            .memory = static_cast<char* const*>(addresses_.const_data_ptr()),
            .room = room,
            .has_own = running.matrix().indptr[running.size()].item<std::int64_t>() > 0 ? 1 : 0,
            .exchanges = static_cast<network::Int*>(exchanges_.mutable_data_ptr()),
            .wait = static_cast<unsigned long long>(std::chrono::nanoseconds(ranks_->patience()).count()),
            .missing = missing_.mutable_data_ptr<int>()};
}

void PeerExchange::check() {
  const auto missing = missing_.item<std::int32_t>();
  TORCH_CHECK(missing == 0, "Network: rank ", ranks_->rank(), " of ", ranks_->size(),
              " did not get the spikes of rank ", missing - 1,
              ", which has failed, is late or does something else, within ", ranks_->patience().count(), " ms");
}

}  // namespace spikeforge::simulation
