#include "csrc/jit/recorder.h"
#include "csrc/simulation/internal/cpu_steps.h"
#include "csrc/simulation/internal/gpu_steps.h"
#include "csrc/simulation/internal/notices.h"
#include "csrc/simulation/internal/recorder.h"
#include "csrc/simulation/internal/undifferentiated.h"
#include "csrc/simulation/network.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace spikeforge {
namespace simulation {

Recorder::Recorder(Running& running, std::int64_t steps, bool spikes, std::vector<Probe> probes)
    : running_(running),
      probes_(std::move(probes)),
      fired_(at::zeros({spikes ? steps : 0, running.size()}, running.options().dtype(at::kBool))) {
  for (const Probe& probe : probes_) states_.push_back(at::zeros({steps, probe.neurons.numel()}, running.options()));
}

void Recorder::run(std::int64_t steps, bool are_last) {
  running_.set_between_steps(false);
  for (std::int64_t i = 0; i < steps; ++i) {
    const at::Tensor& spikes = running_.advance();
    if (fired_.size(0) != 0) {
      at::Tensor row = fired_.select(0, i);
      at::gt_out(row, spikes, 0);
    }
    for (std::size_t k = 0; k < probes_.size(); ++k) {
      at::Tensor row = states_[k].select(0, i);
      at::index_select_out(row, probes_[k].group->states[probes_[k].state], 0, probes_[k].neurons);
    }
  }
  running_.end_step(are_last);
}

Recording in_whole(Running& running, const RecordedStates& states, Recording own) {
  for (std::size_t k = 0; running.ranks() != nullptr && k < states.probes.size(); ++k)
    running.join(Topic::recorded_states, states.probes[k].most, states.whole[k], states.own[k],
                 states.probes[k].places);
  own.states = states.whole;
  if (!running.partition().is_whole())
    own.neurons = running.partition().numbers().to(own.neurons.device()).index_select(0, own.neurons);
  return own;
}

namespace {

constexpr std::int64_t steps_at_once = 20;  // run by operators before their recording is listed

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor t = at::empty({std::ssize(numbers)}, at::kLong);
  if (!numbers.empty()) std::memcpy(t.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(std::int64_t));
  return t;
}

// Runs steps from `first` on, as the functions below do.
Recording on_cpu(Running& running, std::int64_t first, std::int64_t steps, bool spikes, const RecordedStates& states) {
  SpikeList list;
  running.cpu_steps().run(steps, {spikes ? &list : nullptr, states});
  return {tensor_of(list.steps), tensor_of(list.neurons), {}, first};
}

// The recording of steps on a GPU. Spikes are listed after each piece of steps.
class GpuRecord {
 public:
  GpuRecord(const Running& running, std::int64_t first)
      : first_(first), when_{at::empty({0}, running.options().dtype(at::kLong))}, who_{when_.front()} {}

  // Lists the spikes of steps done, ..., done + count - 1 of the call from `fired` [at least count, neurons].
  void list(const at::Tensor& fired, std::int64_t done, std::int64_t count) {
    const at::Tensor places = fired.slice(0, 0, count).nonzero();
    when_.push_back(places.select(1, 0).add(first_ + done));
    who_.push_back(places.select(1, 1));
  }

  Recording take() { return {at::cat(when_), at::cat(who_), {}, first_}; }

 private:
  const std::int64_t first_;
  std::vector<at::Tensor> when_, who_;
};

Recording by_operators(Running& running, std::int64_t first, std::int64_t steps, bool spikes,
                       const RecordedStates& states) {
  GpuRecord record(running, first);
  Recorder recorder(running, std::min(steps, steps_at_once), spikes, states.probes);
  running.expect(steps);
  for (std::int64_t done = 0; done < steps;) {
    const std::int64_t count = std::min(steps_at_once, steps - done);
    recorder.run(count, /*are_last=*/done + count == steps);
    if (spikes) record.list(recorder.fired(), done, count);
    for (std::size_t k = 0; k < states.own.size(); ++k)
      states.own[k].slice(0, done, done + count).copy_(recorder.states()[k].slice(0, 0, count));
    done += count;
  }
  return record.take();
}

// Returns the number of steps of a launch: enough to make launch time negligible, and few enough to keep the memory for
// spikes of all neurons small.
std::int64_t steps_of_a_launch(const Running& running, std::int64_t at_once) {
  constexpr std::int64_t most = 1024, most_spikes = std::int64_t{1} << 27;
  const std::int64_t steps = std::clamp(most_spikes / std::max<std::int64_t>(running.size(), 1), steps_at_once, most);
  return std::max(steps / at_once, std::int64_t{1}) * at_once;
}

Recording by_one_kernel(Running& running, std::int64_t first, std::int64_t steps, bool spikes,
                        const RecordedStates& states) {
  GpuRecord record(running, first);
  GpuSteps& walk = *running.gpu_steps();
  walk.record(states.probes, states.own);
  const std::int64_t most = steps_of_a_launch(running, walk.at_once());
  const at::Tensor fired =
      spikes ? at::empty({std::min(steps, most), running.size()}, running.options().dtype(at::kBool)) : at::Tensor();
  for (std::int64_t done = 0; done < steps;) {
    const std::int64_t count = std::min(most, steps - done);
    const at::Tensor here = spikes ? fired.narrow(0, 0, count) : fired;
    walk.keep();
    running.set_between_steps(false);
    walk.run(count, here, done);
    const bool goes_back = walk.goes_back();
    running.end_step(/*is_last=*/!goes_back && done + count == steps);
    if (goes_back) continue;
    if (spikes) record.list(here, done, count);
    done += count;
  }
  return record.take();
}

// A std::bad_alloc with a message.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string words) : words_(std::move(words)) {}
  const char* what() const noexcept override { return words_.c_str(); }

 private:
  const std::string words_;
};

}  // namespace

Recording simulate_into(Network& network, std::int64_t steps, const SimulateOptions& options,
                        std::optional<std::vector<at::Tensor>> into) {
  TORCH_CHECK_VALUE(steps >= 0, "simulate: steps must not be negative, but is ", steps);
  const Undifferentiated mode;
  Running& running = network.running();
  const RecordedStates states = running.begin(steps, options.states, /*own=*/true, std::move(into));
  const std::int64_t first = running.step();
  try {
    return running.take_steps([&] {
      // Operators run the steps if a kernel pack is recorded, because they add their kernels to it.
      const bool is_on_cpu = running.options().device().is_cpu() && jit::recorder() == nullptr;
      const auto by = is_on_cpu ? on_cpu : running.gpu_steps() != nullptr ? by_one_kernel : by_operators;
      Recording recording = in_whole(running, states, by(running, first, steps, options.spikes, states));
      recording.step_count = steps;
      return recording;
    });
  } catch (const std::bad_alloc&) {
    const std::string what = "simulate: out of memory in " + steps_in_words(first, steps);
    if (!running.is_whole())
      throw OutOfMemory(what + ", in the middle of a step: load a saved state, or build the network again");
    throw OutOfMemory(what + ", and the recording is lost; the network's state is that after step " +
                      std::to_string(running.step()) + ". Spikes take 16 bytes each: simulate fewer steps in a call");
  }
}

}  // namespace simulation

Recording simulate(Network& network, std::int64_t steps, const SimulateOptions& options) {
  return simulation::simulate_into(network, steps, options, {});
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
    if (network.running_ != nullptr) return network.running_->gather_notices(topic, prepare);
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
  return {in_order(spikes[0]), in_order(spikes[1]), own.states, own.first_step, own.step_count};
}

std::pair<at::Tensor, at::Tensor> Recording::of(const Population& population) const {
  const at::Tensor here = neurons.ge(population.begin).logical_and_(neurons.lt(population.end));
  return {steps.masked_select(here), neurons.masked_select(here).sub_(population.begin)};
}

}  // namespace spikeforge
