#include "csrc/simulation/internal/state.h"
#include "csrc/simulation/internal/plastic.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace spikeforge::simulation {
namespace {

std::size_t place_of(const std::string& name, const char* kind, const Population& population,
                     const std::vector<std::string>& names) {
  const auto found = std::ranges::find(names, name);
  TORCH_CHECK_VALUE(found != names.end(), "Network: the neuron of ", population.name, " has no ", kind, " ", name,
                    "; it has ", listed(names));
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

NetworkState::NetworkState(const Description& description)
    : partition(description),
      populations(description.populations),
      device(description.options.device),
      is_deterministic(description.options.deterministic),
      size(partition.size()),
      inputs(description.inputs()),
      columns(size * inputs) {}

std::vector<GroupPart> NetworkState::parts_of(const Group& group) const {
  if (group.size() == 0) return {};
  if (!group.cell->draws || group.size() == group.whole_end - group.whole_begin) return {{0, group.size(), 0}};
  std::vector<GroupPart> parts;
  for (const Slice& slice : partition.slices())
    if (slice.size() > 0 && slice.begin >= group.whole_begin && slice.end <= group.whole_end)
      parts.push_back({slice.first - group.begin, slice.size(), slice.begin - group.whole_begin});
  return parts;
}

Connectivity NetworkState::connectivity() const {
  const std::int64_t whole = partition.whole(), rows = matrix.indptr.numel() - 1;
  const at::Tensor counts = matrix.indptr.diff();
  at::Tensor numbers = partition.numbers();
  if (rows > size) numbers = at::cat({numbers, at::arange(whole, at::kLong), at::zeros({1}, at::kLong)});
  const at::Tensor row = numbers.to(counts.device()).repeat_interleave(counts, 0, matrix.indices.numel());
  const at::Tensor column = partition.whole_columns(inputs).to(counts.device()).index_select(0, matrix.indices);
  const at::Tensor order = at::argsort(row.mul(inputs * whole).add_(column), /*stable=*/true, 0, false);
  const auto sorted = [&](const at::Tensor& t) {
    return t.numel() == row.numel() ? t.index_select(0, order) : t.clone();
  };
  at::Tensor indptr = at::zeros({whole + 1}, counts.options());
  indptr.slice(0, 1).copy_(at::bincount(row, {}, whole).cumsum(0));
  return {column.index_select(0, order).to(at::kInt), indptr, sorted(matrix.weights), sorted(matrix.delays)};
}

std::size_t NetworkState::number_of(const Population& population) const {
  const auto found = std::ranges::find(populations, population);
  TORCH_CHECK_VALUE(found != populations.end(), "simulate: ", population.name, " is not a population of this network");
  return static_cast<std::size_t>(found - populations.begin());
}

OwnColumns NetworkState::own_columns(const Population& population, const std::string& input) const {
  const std::vector<std::string>& inputs = group_with(number_of(population)).cell->inputs;
  const auto found = input.empty() ? inputs.begin() : std::ranges::find(inputs, input);
  TORCH_CHECK_VALUE(found != inputs.end(), "simulate: the neuron of ", population.name, " has no input ", input,
                    "; its inputs: ", listed(inputs));
  return simulation::own_columns({population.begin, population.end, found - inputs.begin()}, *this);
}

OwnColumns own_columns(const Targets& targets, const NetworkState& state) {
  const auto& slices = state.partition.slices();
  const auto slice = std::ranges::find_if(
      slices, [&](const Slice& s) { return s.size() > 0 && s.begin >= targets.begin && s.end <= targets.end; });
  if (slice == slices.end()) return {};
  const std::int64_t begin = targets.input * state.size + slice->first;
  return {begin, begin + slice->size(), slice->begin - targets.begin};
}

at::Tensor NetworkState::state_of(const Population& population, const std::string& name) const {
  const std::size_t number = number_of(population);
  const Group& group = group_with(number);
  const Slice& slice = partition[number];
  return group.states[place_of(name, "state", population, group.cell->states)].narrow(0, slice.first - group.begin,
                                                                                      slice.size());
}

at::Tensor NetworkState::param_of(const Population& population, const std::string& name) const {
  const std::size_t number = number_of(population);
  const Group& group = group_with(number);
  const Slice& slice = partition[number];
  const at::Tensor& all = group.params[place_of(name, "parameter", population, names_of_params(*group.cell))];
  if (all.dim() == 0) return at::full({slice.size()}, all.item(), options());
  return all.narrow(0, slice.first - group.begin, slice.size()).clone();
}

void NetworkState::set_param(const Population& population, const std::string& name, const at::Tensor& value) {
  const std::size_t number = number_of(population);
  Group& group = groups[group_of[number]];
  const Slice& slice = partition[number];
  at::Tensor& all = group.params[place_of(name, "parameter", population, names_of_params(*group.cell))];
  const at::Tensor own = value.dim() == 0 ? value : value.narrow(0, slice.begin - population.begin, slice.size());
  if (all.dim() == 0 && value.dim() == 0 && slice.size() == group.size()) {
    all = own.to(all.options(), /*non_blocking=*/false, /*copy=*/true);
    return;
  }
  if (all.dim() == 0) all = all.to(options()).expand({group.size()}).contiguous();
  all.narrow(0, slice.first - group.begin, slice.size()).copy_(own);
}

Probe NetworkState::probe(const StateProbe& requested) const {
  const Population& population = requested.population;
  const std::size_t number = number_of(population);
  const Group* const group = &group_with(number);
  const std::vector<std::string>& states = group->cell->states;
  const auto state = std::ranges::find(states, requested.state);
  if (state == states.end()) {
    TORCH_CHECK_VALUE(false, "simulate: the neuron of ", population.name, " has no state ", requested.state,
                      "; it has ", listed(states));
  }
  for (const std::int64_t neuron : requested.neurons)
    TORCH_CHECK_VALUE(0 <= neuron && neuron < population.size(), "simulate: neurons of ", population.name,
                      " must be numbers from 0 to ", population.size() - 1, ", but one is ", neuron);
  const Slice& slice = partition[number];
  std::vector<std::int64_t> own, places;
  for (std::size_t i = 0; i < requested.neurons.size(); ++i) {
    const std::int64_t neuron = population.begin + requested.neurons[i];
    if (neuron < slice.begin || neuron >= slice.end) continue;
    own.push_back(slice.first + neuron - slice.begin - group->begin);
    places.push_back(static_cast<std::int64_t>(i));
  }
  return {.group = group,
          .state = static_cast<std::size_t>(state - states.begin()),
          .neurons = at::tensor(own, at::kLong).to(ring.device()),
          .places = at::tensor(places, at::kLong),
          .requested = std::ssize(requested.neurons),
          .most = std::ssize(requested.neurons)};
}

std::vector<Changing> NetworkState::changing() const {
  const at::Tensor numbers = partition.numbers(), places = partition.whole_columns(inputs);
  const std::int64_t whole = partition.whole();
  std::vector<Changing> all{{ring, places, inputs * whole}, {step, {}, 0}, {spikes, numbers, whole}};
  for (const Group& group : groups) {
    const at::Tensor own = numbers.slice(0, group.begin, group.end).sub(group.whole_begin);
    for (const at::Tensor& state : group.states) all.push_back({state, own, group.whole_end - group.whole_begin});
  }
  if (between.defined()) all.push_back({between, places, inputs * whole});
  for (const PlasticConnections& p : plastic)
    for (const at::Tensor& t : p.changing()) all.push_back({t, {}, 0});
  return all;
}

}  // namespace spikeforge::simulation
