#include <spikeforge/jit/recorder.h>
#include <spikeforge/simulation/internal/cpu_steps.h>
#include <spikeforge/simulation/internal/recorder.h>
#include <spikeforge/simulation/internal/undifferentiated.h>
#include <spikeforge/simulation/network.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace spikeforge {
namespace simulation {
namespace {

constexpr std::int64_t steps_at_once = 20;  // that operators take before what they recorded is listed

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor t = at::empty({std::ssize(numbers)}, at::kLong);
  if (!numbers.empty()) std::memcpy(t.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(std::int64_t));
  return t;
}

Recording on_cpu(Running& running, std::int64_t steps, bool spikes, std::vector<Probe> probes) {
  SpikeList list;
  CpuRecord record{.spikes = spikes ? &list : nullptr, .probes = std::move(probes), .states = {}};
  for (const Probe& probe : record.probes)
    record.states.push_back(at::empty({steps, probe.neurons.numel()}, running.options()));
  running.cpu_steps().run(steps, record);
  return {tensor_of(list.steps), tensor_of(list.neurons), std::move(record.states)};
}

Recording by_operators(Running& running, std::int64_t steps, bool spikes, std::vector<Probe> probes) {
  const auto whole = running.options().dtype(at::kLong);
  std::vector<at::Tensor> when{at::empty({0}, whole)}, who{at::empty({0}, whole)};
  Recording recording;
  for (const Probe& probe : probes)
    recording.states.push_back(at::empty({steps, probe.neurons.numel()}, running.options()));
  const std::int64_t first = running.step();
  Recorder recorder(running, std::min(steps, steps_at_once), spikes, std::move(probes));
  for (std::int64_t done = 0; done < steps;) {
    const std::int64_t count = std::min(steps_at_once, steps - done);
    recorder.run(count);
    if (spikes) {
      const at::Tensor places = recorder.fired().slice(0, 0, count).nonzero();
      when.push_back(places.select(1, 0).add(first + done));
      who.push_back(places.select(1, 1));
    }
    for (std::size_t k = 0; k < recording.states.size(); ++k)
      recording.states[k].slice(0, done, done + count).copy_(recorder.states()[k].slice(0, 0, count));
    done += count;
  }
  recording.steps = at::cat(when);
  recording.neurons = at::cat(who);
  return recording;
}

}  // namespace
}  // namespace simulation

Recording simulate(Network& network, std::int64_t steps, const SimulateOptions& options) {
  TORCH_CHECK_VALUE(steps >= 0, "simulate: steps must not be negative, but is ", steps);
  const simulation::Undifferentiated mode;
  simulation::Running& running = network.running();
  running.check_weights();
  std::vector<simulation::Probe> probes;
  for (const StateProbe& asked : options.states) probes.push_back(running.probe(asked));
  // Operators note their kernels where a pack is recorded.
  const bool is_on_cpu = running.options().device().is_cpu() && jit::recorder() == nullptr;
  return (is_on_cpu ? simulation::on_cpu : simulation::by_operators)(running, steps, options.spikes, std::move(probes));
}

std::pair<at::Tensor, at::Tensor> Recording::of(const Population& population) const {
  const at::Tensor here = neurons.ge(population.begin).logical_and_(neurons.lt(population.end));
  return {steps.masked_select(here), neurons.masked_select(here).sub_(population.begin)};
}

}  // namespace spikeforge
