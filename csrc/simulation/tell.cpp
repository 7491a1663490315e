#include <spikeforge/simulation/internal/tell.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace spikeforge::simulation {
namespace {

// What others are waited for, and what a rank that tells it does.
struct TopicWords {
  const char *what, *does;
};

constexpr TopicWords topics[] = {
    {"the description of the network", "builds a network"},
    {"the delays", "tells the delays of a network that it builds"},
    {"whether GPUs share memory", "asks whether GPUs share memory"},
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

constexpr std::size_t words_of_notice = 16;  // topic, network, numbers

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

at::Tensor padded(const at::Tensor& t, std::int64_t length) {
  std::vector<std::int64_t> sizes = t.sizes().vec();
  sizes.back() = length;
  at::Tensor all = at::zeros(sizes, t.options());
  all.narrow(-1, 0, t.size(-1)).copy_(t);
  return all;
}

// Of all ranks, one under the other.
at::Tensor gathered_under(Ranks& ranks, const at::Tensor& own, Topic topic) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks.size());
  at::Tensor all = at::empty(sizes, own.options());
  all_gather(ranks, own, all, words_of(topic).what);
  return all;
}

}  // namespace

std::string steps_in_words(std::int64_t first, std::int64_t steps) {
  if (steps == 0) return "no steps from " + std::to_string(first) + " on";
  return "steps " + std::to_string(first) + " to " + std::to_string(first + steps - 1);
}

void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what) {
  try {
    ranks.all_gather(own, all);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "Network: rank ", ranks.rank(), " of ", ranks.size(), " did not get ", what,
                " of all others, one of which has failed, is late or does something else: ", first_line(error.what()));
  }
}

std::vector<std::vector<std::int64_t>> payloads(Ranks& ranks, const std::vector<std::int64_t>& own, c10::Device device,
                                                Topic topic) {
  const at::Tensor all = gathered_under(ranks, at::tensor(own, at::kLong).to(device), topic).cpu();
  std::vector<std::vector<std::int64_t>> told;
  for (std::int64_t r = 0; r < ranks.size(); ++r) {
    const auto* const begin = all.const_data_ptr<std::int64_t>() + r * std::ssize(own);
    told.emplace_back(begin, begin + own.size());
  }
  return told;
}

std::vector<std::vector<std::int64_t>> told_by_all(Ranks& ranks, const Notice& notice,
                                                   const std::vector<std::int64_t>& own, c10::Device device) {
  std::vector<std::int64_t> words{static_cast<std::int64_t>(notice.topic), notice.network};
  words.insert(words.end(), own.begin(), own.end());
  TORCH_INTERNAL_ASSERT(words.size() <= words_of_notice);
  words.resize(words_of_notice);
  auto told = payloads(ranks, words, device, notice.topic);
  for (std::size_t rank = 1; rank < told.size(); ++rank) {
    const std::int64_t topic = told[rank][0], first = told[0][0];
    TORCH_CHECK(topic == first, "Network: rank ", rank, " of ", ranks.size(), " ", does(topic), ", but rank 0 ",
                does(first), ": all ranks must make the same calls");
    TORCH_CHECK(told[rank][1] == told[0][1], "Network: rank ", rank, " of ", ranks.size(), " ", does(topic),
                ", but of another network than rank 0: all ranks must make the same calls, in the same order");
  }
  for (std::vector<std::int64_t>& rank : told) rank = {rank.begin() + 2, rank.begin() + 2 + std::ssize(own)};
  return told;
}

at::Tensor joined(Ranks& ranks, const Notice& notice, const at::Tensor& own, const at::Tensor& places,
                  std::int64_t whole) {
  const auto sizes = told_by_all(ranks, notice, {own.size(-1)}, own.device());
  const std::int64_t most = (*std::ranges::max_element(sizes))[0];
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape.back() = whole;
  at::Tensor result = at::zeros(shape, own.options());
  if (most == 0 || result.numel() == 0) return result;
  const at::Tensor all = gathered_under(ranks, padded(own, most), notice.topic);
  const at::Tensor all_places = gathered_under(ranks, padded(places.to(own.device()), most), notice.topic);
  for (std::int64_t r = 0; r < ranks.size(); ++r) {
    const std::int64_t count = sizes[static_cast<std::size_t>(r)][0];
    result.index_copy_(-1, all_places[r].narrow(0, 0, count), all[r].narrow(-1, 0, count));
  }
  return result;
}

}  // namespace spikeforge::simulation
