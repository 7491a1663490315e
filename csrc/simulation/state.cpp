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
      copies(description.options.copies),
      inputs(description.inputs()),
      copy_size(partition.size()),
      copy_columns(copy_size * inputs),
      size(copies * copy_size),
      columns(copies * copy_columns) {}

std::vector<GroupPart> NetworkState::parts_of(const Group& group) const {
  std::vector<GroupPart> parts;
  if (group.size() == 0) return parts;
  if (!group.cell->draws || group.size() == group.whole_end - group.whole_begin) {
    for (std::int64_t copy = 0; copy < copies; ++copy)
      parts.push_back({copy * group.size(), group.size(), 0, copy * copy_size + group.begin, copy});
    return parts;
  }
  for (const Slice& slice : partition.slices())
    if (slice.size() > 0 && slice.begin >= group.whole_begin && slice.end <= group.whole_end)
      parts.push_back({slice.first - group.begin, slice.size(), slice.begin - group.whole_begin, slice.first, 0});
  return parts;
}

Connectivity NetworkState::connectivity() const {
  const std::int64_t whole = partition.whole(), rows = matrix.indptr.numel() - 1;  // those of a copy
  const at::Tensor counts = matrix.indptr.diff();
  at::Tensor numbers = partition.numbers();
  if (rows > copy_size) numbers = at::cat({numbers, at::arange(whole, at::kLong), at::zeros({1}, at::kLong)});
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

void NetworkState::check_copy(std::int64_t copy) const {
  TORCH_CHECK_VALUE(0 <= copy && copy < copies, "Network: copy must be from 0 to ", copies - 1, ", but is ", copy);
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
  const std::int64_t begin = targets.input * state.copy_size + slice->first;
  return {begin, begin + slice->size(), slice->begin - targets.begin};
}

at::Tensor NetworkState::state_of(const Population& population, const std::string& name) const {
  const std::size_t number = number_of(population);
  const Group& group = group_with(number);
  const Slice& slice = partition[number];
  const at::Tensor& all = group.states[place_of(name, "state", population, group.cell->states)];
  return by_copies(all).narrow(-1, slice.first - group.begin, slice.size());
}

at::Tensor NetworkState::param_of(const Population& population, const std::string& name) const {
  const std::size_t number = number_of(population);
  const Group& group = group_with(number);
  const Slice& slice = partition[number];
  const at::Tensor& all = group.params[place_of(name, "parameter", population, names_of_params(*group.cell))];
  const at::Tensor each = all.dim() == 0 ? at::full({copies * group.size()}, all.item(), options()) : all;
  return by_copies(each).narrow(-1, slice.first - group.begin, slice.size()).clone();
}

void NetworkState::set_param(const Population& population, const std::string& name, const at::Tensor& value) {
  const std::size_t number = number_of(population);
  Group& group = groups[group_of[number]];
  const Slice& slice = partition[number];
  at::Tensor& all = group.params[place_of(name, "parameter", population, names_of_params(*group.cell))];
  const OwnColumns places{0, slice.size(), slice.begin - population.begin};
  const at::Tensor own = places.of(value);
  if (all.dim() == 0 && value.dim() == 0 && slice.size() == group.size()) {
    all = own.to(all.options(), /*non_blocking=*/false, /*copy=*/true);
    return;
  }
  if (all.dim() == 0) all = all.to(options()).expand({copies * group.size()}).contiguous();
  by_copies(all).narrow(-1, slice.first - group.begin, slice.size()).copy_(own);
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
  const at::Tensor copy = at::tensor(own, at::kLong);
  const at::Tensor all = at::arange(copies, at::kLong).mul_(group->size()).unsqueeze(1).add(copy).flatten();
  return {.group = group,
          .state = static_cast<std::size_t>(state - states.begin()),
          .neurons = all.to(ring.device()),
          .places = at::tensor(places, at::kLong),
          .requested = copies * std::ssize(requested.neurons),
          .most = std::ssize(requested.neurons)};
}

std::uint64_t NetworkState::version() const {
  std::uint64_t version = ring._version();
  if (between.defined()) version += between._version();
  for (const Group& group : groups)
    for (const at::Tensor& state : group.states) version += state._version();
  return version;
}

std::vector<Changing> NetworkState::changing() const {
  const at::Tensor numbers = partition.numbers(), places = partition.whole_columns(inputs);
  const std::int64_t whole = copies * partition.whole();
  std::vector<Changing> all{{ring, places, inputs * whole}, {step, {}, 0}, {spikes, numbers, whole}};
  for (const Group& group : groups) {
    const at::Tensor own = numbers.slice(0, group.begin, group.end).sub(group.whole_begin);
    for (const at::Tensor& state : group.states)
      all.push_back({state, own, copies * (group.whole_end - group.whole_begin)});
  }
  if (between.defined()) all.push_back({between, places, inputs * whole});
  for (const PlasticConnections& p : plastic)
    for (const at::Tensor& t : p.changing()) all.push_back({t, {}, 0});
  return all;
}

}  // namespace spikeforge::simulation
