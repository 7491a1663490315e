#include "csrc/simulation/internal/notices.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace spikeforge::simulation {
namespace {

// Words for messages: `what` the other ranks wait for, and what the sending rank `does`.
struct TopicWords {
  const char *what, *does;
};

constexpr TopicWords topics[] = {
    {"the description of the network", "builds a network"},
    {"the delays", "sends the delays of a network that it builds"},
    {"whether the network is built", "has built a network"},
    {"whether GPUs share memory", "queries whether GPUs share memory"},
    {"the number of connections", "counts connections, to save or load a state"},
    {"the steps to simulate", "simulates"},
    {"recorded states", "gathers states that it recorded"},
    {"the state", "gathers the state"},
    {"the state to load", "loads a state"},
    {"recorded spikes", "gathers spikes that it recorded"},
};

const TopicWords& words_of(Topic topic) { return topics[static_cast<std::size_t>(topic)]; }

std::string does(std::int64_t topic) {
  return 0 <= topic && topic < std::ssize(topics) ? topics[topic].does : "does something else";
}

constexpr std::size_t words_of_notice = 16, words_before = 4;  // topic, network, failure, unsent; then values

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A message with space for `places` elements, and the messages of all ranks, stacked.
struct Message {
  at::Tensor own, all;

  Message(Ranks& ranks, std::vector<std::int64_t> sizes, std::int64_t places, const at::TensorOptions& options) {
    sizes.back() = places;
    own = at::zeros(sizes, options);
    sizes.insert(sizes.begin(), ranks.size());
    all = at::empty(sizes, options);
  }
};

// Returns the topic, network, failure, unsent failure and values of each rank.
std::vector<Numbers> notices(Ranks& ranks, const Notice& notice, Failure failure, const Numbers& own,
                             c10::Device device) {
  Numbers words{static_cast<std::int64_t>(notice.topic), notice.network, static_cast<std::int64_t>(failure),
                static_cast<std::int64_t>(notice.unsent)};
  words.insert(words.end(), own.begin(), own.end());
  TORCH_INTERNAL_ASSERT(words.size() <= words_of_notice);
  words.resize(words_of_notice);
  return payloads(ranks, words, device, notice.topic);
}

std::string words_of(const Ranks& ranks, std::int64_t rank, Failure failure) {
  const std::string who = "Network: rank " + std::to_string(rank) + " of " + std::to_string(ranks.size());
  if (failure == Failure::between_steps)
    return who + " failed (its own error has the reason); all ranks are at the same step";
  return who + " failed in the middle of its steps (its own error has the reason): load a state on all ranks";
}

}  // namespace

RankFailed::RankFailed(const Ranks& ranks, std::int64_t rank, Failure failure)
    : c10::Error({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, words_of(ranks, rank, failure)),
      failure(failure) {}

std::string steps_in_words(std::int64_t first, std::int64_t steps) {
  if (steps == 0) return "no steps from " + std::to_string(first) + " on";
  return "steps " + std::to_string(first) + " to " + std::to_string(first + steps - 1);
}

void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what) {
  try {
    ranks.all_gather(own, all);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "Network: rank ", ranks.rank(), " of ", ranks.size(), " did not get ", what,
                " of all others, one of which failed, is late or made a different call: ", first_line(error.what()));
  }
}

std::vector<Numbers> payloads(Ranks& ranks, const Numbers& own, c10::Device device, Topic topic) {
  const at::Tensor words = at::tensor(own, at::kLong).to(device);
  const at::Tensor gathered = at::empty({ranks.size(), std::ssize(own)}, words.options());
  all_gather(ranks, words, gathered, words_of(topic).what);
  const at::Tensor all = gathered.cpu();
  std::vector<Numbers> received;
  for (std::int64_t r = 0; r < ranks.size(); ++r) {
    const auto* const begin = all.const_data_ptr<std::int64_t>() + r * std::ssize(own);
    received.emplace_back(begin, begin + own.size());
  }
  return received;
}

Notices gather_notices(Ranks& ranks, const Notice& notice, c10::Device device,
                       const std::function<Numbers()>& prepare) {
  Numbers own;
  try {
    own = prepare();
  } catch (...) {
    send_failure(ranks, notice, device, std::max(notice.unsent, Failure::between_steps));
    throw;
  }
  std::vector<Numbers> all = notices(ranks, notice, Failure::none, own, device);
  const bool are_alike =
      std::ranges::all_of(all, [&](const Numbers& rank) { return rank[0] == all[0][0] && rank[1] == all[0][1]; });
  Failure failure = Failure::none, unsent = Failure::none;
  std::int64_t failed = 0;
  for (std::int64_t rank = 0; rank < ranks.size(); ++rank) {
    const Numbers& theirs = all[static_cast<std::size_t>(rank)];
    const auto before = static_cast<Failure>(theirs[3]), now = static_cast<Failure>(theirs[2]);
    const Failure worst = std::max(now, are_alike ? Failure::none : before);
    if (worst > failure) failed = rank;
    failure = std::max(failure, worst);
    unsent = std::max(unsent, before);
  }
  if (!are_alike && notice.unsent != Failure::none)
    return gather_notices(ranks, {notice.topic, notice.network}, device, [&] { return own; });
  if (failure != Failure::none) throw RankFailed(ranks, failed, std::max(failure, unsent));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::int64_t topic = all[rank][0], first = all[0][0];
    TORCH_CHECK(topic == first, "Network: rank ", rank, " of ", ranks.size(), " ", does(topic), ", but rank 0 ",
                does(first), ": all ranks must make the same calls");
    TORCH_CHECK(all[rank][1] == all[0][1], "Network: rank ", rank, " of ", ranks.size(), " ", does(topic),
                ", but of another network than rank 0: all ranks must make the same calls, in the same order");
  }
  for (Numbers& rank : all) rank = {rank.begin() + words_before, rank.begin() + words_before + std::ssize(own)};
  return {std::move(all), unsent};
}

void send_failure(Ranks& ranks, const Notice& notice, c10::Device device, Failure failure) noexcept {
  try {
    notices(ranks, notice, failure, {}, device);
  } catch (const std::exception&) {  // the other ranks time out
  }
}

void join(Ranks& ranks, Topic topic, std::int64_t most, const at::Tensor& whole, const std::function<Share()>& share,
          const std::function<std::vector<Numbers>(const std::function<Numbers()>&)>& gather) {
  if (most == 0 || (whole.defined() && whole.numel() == 0)) return;
  std::optional<Message> elements, places;
  const std::vector<Numbers> counts = gather([&] {
    const auto [own, own_places] = share();
    const std::int64_t count = own.size(-1);
    elements.emplace(ranks, whole.sizes().vec(), most, whole.options());
    places.emplace(ranks, std::vector<std::int64_t>{most}, most, whole.options().dtype(at::kLong));
    elements->own.narrow(-1, 0, count).copy_(own);
    places->own.narrow(-1, 0, count).copy_(own_places);
    return Numbers{count};
  });
  for (const std::optional<Message>* const message : {&elements, &places})
    all_gather(ranks, (*message)->own, (*message)->all, words_of(topic).what);
  for (std::int64_t r = 0; r < ranks.size(); ++r) {
    const std::int64_t count = counts[static_cast<std::size_t>(r)][0];
    whole.index_copy_(-1, places->all[r].narrow(0, 0, count), elements->all[r].narrow(-1, 0, count));
  }
}

}  // namespace spikeforge::simulation
