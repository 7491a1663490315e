#include "csrc/simulation/internal/notices.h"
#include "csrc/simulation/internal/running.h"
#include "csrc/simulation/internal/undifferentiated.h"
#include "csrc/simulation/network.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace spikeforge {

Recording simulate(Network& network, std::int64_t steps, const SimulateOptions& options) {
  const simulation::Undifferentiated mode;
  return network.running().simulate(steps, options);
}

Recording gathered(const Network& network, const Recording& own) {
  const std::shared_ptr<Ranks>& ranks = network.options().ranks;
  if (ranks == nullptr || ranks->size() == 1) return own;
  const simulation::Undifferentiated mode;
  const c10::Device device = network.options().device;
  constexpr simulation::Topic topic = simulation::Topic::gather;
  const auto are_numbers = [](const at::Tensor& t) {
    return t.defined() && t.scalar_type() == at::kLong && t.dim() == 1;
  };
  const bool is_recording =
      are_numbers(own.steps) && are_numbers(own.neurons) && own.steps.numel() == own.neurons.numel();
  const std::int64_t count = is_recording ? own.steps.numel() : -1, rank = ranks->rank();
  const auto gather = [&](const std::function<simulation::Numbers()>& prepare) {
    if (network.running_ != nullptr) return network.running_->guard().gather_notices(topic, prepare);
    return simulation::gather_notices(*ranks, {topic}, device, prepare).numbers;
  };
  const std::vector<simulation::Numbers> received = gather([&] {
    return simulation::Numbers{count, own.first_step, own.step_count};
  });
  std::int64_t before = 0, all = 0, most = 0;
  for (std::int64_t r = 0; r < ranks->size(); ++r) {
    const simulation::Numbers &theirs = received[static_cast<std::size_t>(r)], &first = received[0];
    TORCH_CHECK_VALUE(theirs[0] >= 0, "gather: steps and neurons must be int64 [spikes], but rank ", r, "'s are not");
    TORCH_CHECK_VALUE(theirs[1] == first[1] && theirs[2] == first[2], "gather: rank ", r, " of ", ranks->size(),
                      " recorded ", simulation::steps_in_words(theirs[1], theirs[2]), ", but rank 0 ",
                      simulation::steps_in_words(first[1], first[2]), ": all ranks must gather the same recording");
    before += r < rank ? theirs[0] : 0;
    all += theirs[0];
    most = std::max(most, theirs[0]);
  }
  const auto options = own.steps.options().device(device);
  at::Tensor spikes = most == 0 ? at::empty({2, 0}, options) : at::Tensor();
  const auto share = [&]() -> simulation::Share {
    spikes = at::empty({2, all}, options);
    return {at::stack({own.steps, own.neurons}), at::arange(before, before + count, at::kLong)};
  };
  simulation::join(*ranks, topic, most, spikes, share, gather);
  const auto sorted = at::sort(spikes[0].mul(std::max<std::int64_t>(network.size(), 1)).add_(spikes[1]));
  TORCH_CHECK_VALUE(all < 2 || std::get<0>(sorted).diff().all().item<bool>(),
                    "gather: ranks have the same spikes: was this recording gathered before?");
  const auto in_order = [&](const at::Tensor& t) {
    return t.index_select(0, std::get<1>(sorted)).to(own.steps.device());
  };
  return {in_order(spikes[0]), in_order(spikes[1]), own.states, own.first_step, own.step_count, {}};
}

std::pair<at::Tensor, at::Tensor> Recording::of(const Population& population, std::optional<std::int64_t> copy) const {
  at::Tensor here = neurons.ge(population.begin).logical_and_(neurons.lt(population.end));
  if (copy && copies.defined()) here = here.logical_and_(copies.eq(*copy));
  return {steps.masked_select(here), neurons.masked_select(here).sub_(population.begin)};
}

}  // namespace spikeforge
