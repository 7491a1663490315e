#include "csrc/simulation/internal/running.h"
#include "csrc/neuron/random.h"
#include "csrc/simulation/internal/cpu_steps.h"
#include "csrc/simulation/internal/digest.h"
#include "csrc/simulation/internal/gpu_steps.h"
#include "csrc/simulation/internal/matrix_layout.h"
#include "csrc/simulation/internal/plastic_operators.h"
#include "ops/event.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace spikeforge::simulation {
namespace {

// Kinds of random streams: each group, drive layer and learning projection has a separate stream, different from those
// of connections.
enum class Stream : unsigned { group = 1, drive = 2, plastic = 3 };

at::Tensor seed_of(std::int64_t seed, Stream stream, std::size_t number) {
  const PhiloxWords words = philox({{static_cast<unsigned>(number), static_cast<unsigned>(stream), 0, 0x6e657477U}},
                                   static_cast<unsigned long long>(seed));
  const auto key = static_cast<unsigned long long>(words.word[1]) << 32 | words.word[0];
  return at::scalar_tensor(static_cast<std::int64_t>(key), at::kLong);
}

at::Tensor spread(const PerNeuron& value, std::int64_t size, const at::TensorOptions& options) {
  return value.tensor().detach().to(options).expand({size});
}

// Returns the values of own neurons.
PerNeuron own_of(const PerNeuron& value, const Population& population, const Slice& slice) {
  if (value.is_number()) return value;
  return value.tensor().narrow(0, slice.begin - population.begin, slice.size());
}

// Returns a value of several neighbouring populations: 0-dimensional if it is the same for all, else one element per
// neuron.
at::Tensor gathered(const std::vector<PerNeuron>& values, const std::vector<std::int64_t>& sizes,
                    const at::TensorOptions& options, bool may_be_one) {
  const auto is_same = [&](const PerNeuron& value) {
    return value.is_number() && value.tensor().item<double>() == values[0].tensor().item<double>();
  };
  if (may_be_one && values[0].is_number() && std::ranges::all_of(values, is_same))
    return values[0].tensor().detach().to(options.device(c10::kCPU));
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < values.size(); ++i) parts.push_back(spread(values[i], sizes[i], options));
  return at::cat(parts).contiguous();
}

constexpr std::int64_t most_block = 1024;  // the maximum number of steps without an exchange

int bits_of(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))); }

// Own columns of targets in one population, and the first of its neurons that they belong to.
struct OwnColumns {
  std::int64_t begin = 0, end = 0, first = 0;

  // Selects the values of own neurons from a scalar, or from one value per neuron of the population.
  at::Tensor of(const at::Tensor& numbers) const {
    return numbers.dim() == 0 ? numbers : numbers.narrow(0, first, end - begin);
  }
};

OwnColumns own_columns(const Targets& to, const Partition& partition, std::int64_t size) {
  const auto& slices = partition.slices();
  const auto slice = std::ranges::find_if(
      slices, [&](const Slice& s) { return s.size() > 0 && s.begin >= to.begin && s.end <= to.end; });
  if (slice == slices.end()) return {};
  const std::int64_t begin = to.input * size + slice->first;
  return {begin, begin + slice->size(), slice->begin - to.begin};
}

// Describes the exception that is being handled.
std::string reason() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "unknown error";
  }
}

std::int64_t digest_of(const std::vector<StateProbe>& recorded) {
  Digest digest;
  for (const StateProbe& probe : recorded) {
    digest.add(probe.population.begin).add(probe.state).add(std::ssize(probe.neurons));
    for (const std::int64_t neuron : probe.neurons) digest.add(neuron);
  }
  return digest.sum();
}

at::Tensor recorded_state(std::int64_t steps, std::int64_t neurons, const at::TensorOptions& options) {
  try {
    return at::empty({steps, neurons}, options);
  } catch (const c10::OutOfMemoryError&) {  // a GPU is out of memory; the message is sufficient
    throw;
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "simulate: states must fit into memory, but one of ", neurons, " neurons in ", steps,
                " steps does not: record fewer neurons, or simulate fewer steps in a call");
  }
}

std::string described(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  const std::string numbers = c10::str(t.scalar_type(), " ", t.sizes(), " on ", t.device());
  if (t.layout() != at::kStrided) return c10::str(t.layout(), " ", numbers);
  return t.is_contiguous() ? numbers : numbers + ", not contiguous";
}

}  // namespace

// The range of delays and weights of the connections of a rank, or of all ranks. Delays determine when the spikes of
// other ranks arrive.
struct Running::Extent {
  std::int64_t least_between = most_block, most = 1;  // delays
  std::int64_t connections = 0;
  std::int64_t exponent = std::numeric_limits<std::int32_t>::min();  // 2^exponent is above |weights|

  Extent() = default;

  // `first_between` is the first connection of the matrix between areas or ranks.
  Extent(const Connectivity& matrix, std::int64_t first_between) : connections(matrix.indices.numel()) {
    if (connections == 0) return;
    const at::Tensor& delays = matrix.delays;
    most = delays.max().item<std::int64_t>();
    if (first_between < connections)
      least_between = delays.slice(0, delays.numel() == 1 ? 0 : first_between).min().item<std::int64_t>();
    const auto [low, high] = at::aminmax(matrix.weights);
    int above = 0;
    std::frexp(std::max(std::abs(low.item<double>()), std::abs(high.item<double>())), &above);
    exponent = above;
  }

  Numbers numbers() const { return {least_between, most, connections, exponent}; }

  // Combines the values of all ranks.
  explicit Extent(const std::vector<Numbers>& received) {
    for (const Numbers& rank : received) {
      least_between = std::min(least_between, rank[0]);
      most = std::max(most, rank[1]);
      connections += rank[2];
      exponent = std::max(exponent, rank[3]);
    }
  }
};

Running::Running(const Description& description, std::int64_t number)
    : partition_(description),
      ranks_(description.ranks() > 1 ? description.options.ranks : nullptr),
      number_(number),
      populations_(description.populations),
      deterministic_(description.options.deterministic),
      device_(description.options.device),
      size_(partition_.size()),
      inputs_(description.inputs()),
      columns_(size_ * inputs_),
      poisson_("neuron poisson_input(x;; weight, rate) { return x + weight * poisson(rate) }") {
  const auto options = at::TensorOptions(description.dtype).device(device_);
  Extent own;
  const Extent all(gather_notices(Topic::delays, [&] {
    if (ranks_ != nullptr) exchange_.emplace(ranks_, description);
    make_groups(description);
    connect(description);
    const bool has_between = matrix_.indptr.numel() - 1 > size_;
    own = {matrix_, has_between ? matrix_.indptr[size_].item<std::int64_t>() : matrix_.indices.numel()};
    return own.numbers();
  }));
  gather_notices(Topic::built, [&]() -> Numbers {
    make_rings(description, own, all);
    step_ = at::zeros({}, options.dtype(at::kLong));
    weights_at_ = matrix_.weights.const_data_ptr();
    spikes_ = at::zeros({size_}, options);
    make_drives(description);
    make_current(description);
    for (const DescribedPlastic& plastic : description.plastic)
      plastic_.emplace_back(plastic, description, columns_,
                            seed_of(description.options.seed, Stream::plastic, plastic_.size()).item<std::int64_t>());
    return {};
  });
}

Running::~Running() = default;

void Running::make_groups(const Description& description) {
  const auto options = at::TensorOptions(description.dtype).device(description.options.device);
  for (std::size_t first = 0, last = 0; first < populations_.size(); first = last) {
    const DescribedPopulation& alike = description.neurons[first];
    while (last < populations_.size() && description.neurons[last].neuron.text() == alike.neuron.text()) ++last;
    const Slice& last_slice = partition_[last - 1];
    Group group{.begin = partition_[first].first,
                .end = last_slice.first + last_slice.size(),
                .whole_begin = populations_[first].begin,
                .whole_end = populations_[last - 1].end,
                .neuron = alike.neuron,
                .cell = alike.cell,
                .states = {},
                .params = {},
                .seed = {}};
    std::vector<std::int64_t> sizes;
    for (std::size_t i = first; i < last; ++i) sizes.push_back(partition_[i].size());
    const auto gather = [&](std::vector<PerNeuron> DescribedPopulation::*list, std::size_t k, bool may_be_one) {
      std::vector<PerNeuron> values;
      for (std::size_t i = first; i < last; ++i)
        values.push_back(own_of((description.neurons[i].*list)[k], populations_[i], partition_[i]));
      return gathered(values, sizes, options, may_be_one);
    };
    for (std::size_t k = 0; k < alike.states.size(); ++k)
      group.states.push_back(gather(&DescribedPopulation::states, k, false));
    for (std::size_t k = 0; k < alike.params.size(); ++k)
      group.params.push_back(gather(&DescribedPopulation::params, k, true));
    if (group.cell->draws) group.seed = seed_of(description.options.seed, Stream::group, groups_.size());
    groups_.push_back(std::move(group));
    group_of_.resize(last, groups_.size() - 1);
  }
}

std::vector<GroupPart> Running::parts_of(const Group& group) const {
  if (group.size() == 0) return {};
  if (!group.cell->draws || group.size() == group.whole_end - group.whole_begin) return {{0, group.size(), 0}};
  std::vector<GroupPart> parts;
  for (const Slice& slice : partition_.slices())
    if (slice.size() > 0 && slice.begin >= group.whole_begin && slice.end <= group.whole_end)
      parts.push_back({slice.first - group.begin, slice.size(), slice.begin - group.whole_begin});
  return parts;
}

void Running::connect(const Description& description) {
  std::vector<Projection> projections;
  for (const DescribedProjection& described : description.projections) {
    Projection p = described.how;
    p.targets.begin += described.input * partition_.whole();
    p.targets.end += described.input * partition_.whole();
    projections.push_back(std::move(p));
  }
  const NetworkOptions& options = description.options;
  const bool all_stay = std::ranges::all_of(description.projections, [&](const DescribedProjection& p) {
    return stays_within(description, p.sources, p.targets);
  });
  if (all_stay && ranks_ == nullptr)
    matrix_ = spikeforge::connect(size_, columns_, projections, options.seed, description.weight_dtype, options.device);
  else
    connect_part(description, projections);
  if (options.device.is_cpu()) sort_rows(matrix_);
  if (options.device.is_cuda()) near_ = near_first(matrix_);
}

void Running::connect_part(const Description& description, const std::vector<Projection>& projections) {
  const std::int64_t whole = partition_.whole(), inputs = description.inputs();
  ConnectivityPart part{
      .columns = at::full({inputs * whole}, -1, at::kInt), .first_rows = {}, .rows = size_ + whole + 1};
  part.columns.index_copy_(0, partition_.whole_columns(inputs), at::arange(columns_, at::kInt));
  part.columns = part.columns.to(description.options.device);
  for (const DescribedProjection& p : description.projections) {
    const bool stays = stays_within(description, p.sources, p.targets);
    part.first_rows.push_back(stays ? partition_[p.sources].first : size_ + p.how.sources.begin);
  }
  matrix_ = spikeforge::connect_part(whole, inputs * whole, projections, part, description.options.seed,
                                     description.weight_dtype, description.options.device);
}

void Running::make_rings(const Description& description, const Extent& own, const Extent& all) {
  bool any_within = false, any_between = false;
  for (const DescribedProjection& p : description.projections)
    (stays_within(description, p.sources, p.targets) ? any_within : any_between) = true;
  if (own.connections > 0)
    doublings_ = bits_of(all.connections) - bits_of(own.connections) + static_cast<int>(all.exponent - own.exponent);
  if (any_between) {
    constexpr std::int64_t most_places = std::int64_t{1} << 32;  // places are sent as 32-bit numbers
    block_ =
        std::clamp<std::int64_t>(most_places / std::max<std::int64_t>(partition_.whole(), 1), 1, all.least_between);
  }
  if (exchange_) exchange_->set_block(block_);
  const auto options = at::TensorOptions(description.dtype).device(device_);
  buffer_ = in_large_pages(at::zeros({all.most + 1, columns_}, options));
  const bool sums_are_ordered = description.options.device.is_cpu() || deterministic_;
  if (any_within && any_between && sums_are_ordered)
    between_ = in_large_pages(at::zeros({all.most + 1, columns_}, options));
}

Connectivity Running::connectivity() const {
  const std::int64_t whole = partition_.whole(), rows = matrix_.indptr.numel() - 1;
  const at::Tensor counts = matrix_.indptr.diff();
  at::Tensor numbers = partition_.numbers();
  if (rows > size_) numbers = at::cat({numbers, at::arange(whole, at::kLong), at::zeros({1}, at::kLong)});
  const at::Tensor row = numbers.to(counts.device()).repeat_interleave(counts, 0, matrix_.indices.numel());
  const at::Tensor column = partition_.whole_columns(inputs_).to(counts.device()).index_select(0, matrix_.indices);
  const at::Tensor order = at::argsort(row.mul(inputs_ * whole).add_(column), /*stable=*/true, 0, false);
  const auto sorted = [&](const at::Tensor& t) {
    return t.numel() == row.numel() ? t.index_select(0, order) : t.clone();
  };
  at::Tensor indptr = at::zeros({whole + 1}, counts.options());
  indptr.slice(0, 1).copy_(at::bincount(row, {}, whole).cumsum(0));
  return {column.index_select(0, order).to(at::kInt), indptr, sorted(matrix_.weights), sorted(matrix_.delays)};
}

void Running::make_drives(const Description& description) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> taken;  // columns with input in each layer
  for (const DescribedDrive& described : description.drives) {
    const Targets& to = described.targets;
    const std::int64_t begin = to.input * partition_.whole() + to.begin, end = begin + to.end - to.begin;
    const auto is_free = [&](const auto& columns) {
      return std::ranges::all_of(columns,
                                 [&](const auto& other) { return other.second <= begin || end <= other.first; });
    };
    const auto layer = static_cast<std::size_t>(std::ranges::find_if(taken, is_free) - taken.begin());
    if (layer == taken.size()) {
      taken.emplace_back();
      drives_.push_back({.rates = at::zeros({columns_}, buffer_.options()),
                         .weights = at::zeros({columns_}, buffer_.options()),
                         .seed = seed_of(description.options.seed, Stream::drive, layer)});
    }
    taken[layer].emplace_back(begin, end);
    const OwnColumns own = own_columns(to, partition_, size_);
    drives_[layer].rates.slice(0, own.begin, own.end).copy_(own.of(described.rates));
    drives_[layer].weights.slice(0, own.begin, own.end).fill_(described.weight);
  }
}

void Running::make_current(const Description& description) {
  if (description.currents.empty()) return;
  current_ = at::zeros({columns_}, buffer_.options());
  for (const DescribedCurrent& described : description.currents) {
    const OwnColumns own = own_columns(described.targets, partition_, size_);
    current_.slice(0, own.begin, own.end).add_(own.of(described.current).to(buffer_.options()));
  }
}

Probe Running::probe(const StateProbe& requested) const {
  const Population& population = requested.population;
  const auto found = std::ranges::find(populations_, population);
  TORCH_CHECK_VALUE(found != populations_.end(), "simulate: ", population.name, " is no population of this network");
  const Group* const group = &groups_[group_of_[static_cast<std::size_t>(found - populations_.begin())]];
  const std::vector<std::string>& states = group->cell->states;
  const auto state = std::ranges::find(states, requested.state);
  if (state == states.end()) {
    std::string known;
    for (const std::string& name : states) known += (known.empty() ? "" : ", ") + name;
    TORCH_CHECK_VALUE(false, "simulate: the neuron of ", population.name, " has no state ", requested.state,
                      "; it has ", known.empty() ? "none" : known);
  }
  for (const std::int64_t neuron : requested.neurons)
    TORCH_CHECK_VALUE(0 <= neuron && neuron < population.size(), "simulate: neurons of ", population.name,
                      " must be numbers from 0 to ", population.size() - 1, ", but one is ", neuron);
  const Slice& slice = partition_[static_cast<std::size_t>(found - populations_.begin())];
  std::vector<std::int64_t> own, places;
  for (std::size_t i = 0; i < requested.neurons.size(); ++i) {
    const std::int64_t neuron = population.begin + requested.neurons[i];
    if (neuron < slice.begin || neuron >= slice.end) continue;
    own.push_back(slice.first + neuron - slice.begin - group->begin);
    places.push_back(static_cast<std::int64_t>(i));
  }
  return {.group = group,
          .state = static_cast<std::size_t>(state - states.begin()),
          .neurons = at::tensor(own, at::kLong).to(buffer_.device()),
          .places = at::tensor(places, at::kLong),
          .requested = std::ssize(requested.neurons),
          .most = most_of_a_rank(requested)};
}

std::int64_t Running::most_of_a_rank(const StateProbe& requested) const {
  if (!exchange_) return std::ssize(requested.neurons);
  std::int64_t most = 0;
  for (const std::vector<Slice>& slices : exchange_->slices()) {
    const auto slice = std::ranges::find_if(slices, [&](const Slice& s) {
      return s.begin >= requested.population.begin && s.end <= requested.population.end;
    });
    if (slice == slices.end()) continue;
    const auto is_its = [&](std::int64_t neuron) {
      return slice->begin <= requested.population.begin + neuron && requested.population.begin + neuron < slice->end;
    };
    most = std::max<std::int64_t>(most, std::ranges::count_if(requested.neurons, is_its));
  }
  return most;
}

std::vector<Changing> Running::changing() const {
  const at::Tensor columns = partition_.whole_columns(inputs_);
  const std::int64_t whole = partition_.whole();
  std::vector<Changing> all{
      {buffer_, columns, inputs_ * whole}, {step_, {}, 0}, {spikes_, partition_.numbers(), whole}};
  for (const Group& group : groups_) {
    const at::Tensor own = partition_.numbers().slice(0, group.begin, group.end).sub(group.whole_begin);
    for (const at::Tensor& state : group.states) all.push_back({state, own, group.whole_end - group.whole_begin});
  }
  if (between_.defined()) all.push_back({between_, columns, inputs_ * whole});
  for (const PlasticConnections& plastic : plastic_)
    for (const at::Tensor& t : plastic.changing()) all.push_back({t, {}, 0});
  return all;
}

void Running::check_weights() const {
  const at::Tensor& weights = matrix_.weights;
  const bool are_there = weights.const_data_ptr() == weights_at_ && weights.storage().nbytes() >= weights.nbytes();
  const bool are_all_there = std::ranges::all_of(plastic_, [](const PlasticConnections& p) { return p.are_there(); });
  TORCH_CHECK_VALUE(are_there && are_all_there,
                    "Network: the weights of a built network may be written, but not resized");
}

void Running::check_is_whole() const {
  TORCH_CHECK(is_whole_, "Network: an earlier call failed in the middle of its steps (", why_not_whole_,
              "), and this network's state is incomplete: load a saved state (load_state_dict, or "
              "load_state in C++), or build the network again");
}

void Running::set_not_whole() noexcept {
  is_whole_ = false;
  try {
    why_not_whole_ = reason();
  } catch (const std::exception&) {
    why_not_whole_ = "out of memory";
  }
}

void Running::fail() noexcept {
  const bool sends = ranks_ != nullptr && !others_throw_too_;
  const bool is_sent = sends && (exchange_->send_failure() || send_failed_spikes());
  if (sends && !is_sent) unsent_failure_ = is_between_steps_ ? Failure::between_steps : Failure::within_step;
  if (is_sent || !is_between_steps_) set_not_whole();
}

void Running::send_unsent_failure(Topic topic) {
  const Failure unsent = std::exchange(unsent_failure_, Failure::none);
  if (unsent != Failure::none) send_failure(*ranks_, {topic, number_}, device_, unsent);
}

// Also sends an unsent failure to the other ranks, which make the same call and throw.
void Running::check_is_whole(Topic topic) {
  if (!is_whole_) send_unsent_failure(topic);
  check_is_whole();
}

std::vector<Numbers> Running::gather_notices(Topic topic, const std::function<Numbers()>& prepare) {
  if (ranks_ == nullptr) return {prepare()};
  // load_state, which ends a failure, may follow it, and so may counting connections, which load_state_dict does first.
  const bool mends = topic == Topic::load_state || topic == Topic::connections;
  if (!mends) send_unsent_failure(topic);
  const Notice notice{topic, number_, std::exchange(unsent_failure_, Failure::none)};
  try {
    Notices all = simulation::gather_notices(*ranks_, notice, device_, prepare);
    if (is_whole_ && all.failure == Failure::within_step) {
      is_whole_ = false;
      why_not_whole_ = "another rank failed";
    }
    return std::move(all.numbers);
  } catch (const RankFailed& failed) {
    others_throw_too_ = true;
    if (failed.failure == Failure::within_step) set_not_whole();
    throw;
  } catch (...) {
    others_throw_too_ = true;
    throw;
  }
}

void Running::join(Topic topic, std::int64_t most, const at::Tensor& whole, const at::Tensor& own,
                   const at::Tensor& places) {
  others_throw_too_ = true;  // gather_notices reports failures of a single rank
  simulation::join(
      *ranks_, topic, most, whole,
      [&] {
        return Share{own, places};
      },
      [&](const std::function<Numbers()>& prepare) { return gather_notices(topic, prepare); });
  others_throw_too_ = false;
}

void check_recorded(const char* name, at::TensorList given, const std::vector<Probe>& probes, bool own,
                    std::int64_t steps, const at::TensorOptions& options) {
  TORCH_CHECK_VALUE(given.size() == probes.size(), "simulate: ", name, " must have a tensor for each of ",
                    probes.size(), " recorded states, but has ", given.size());
  for (std::size_t k = 0; k < probes.size(); ++k) {
    const at::Tensor& t = given[k];
    const std::int64_t sizes[] = {steps, own ? probes[k].neurons.numel() : probes[k].requested};
    const at::ScalarType type = options.dtype().toScalarType();
    const bool fits = t.defined() && t.layout() == at::kStrided && t.sizes() == c10::IntArrayRef(sizes) &&
                      t.is_contiguous() && t.scalar_type() == type && t.device() == options.device();
    TORCH_CHECK_VALUE(fits, "simulate: ", name, "[", k, "] must be a contiguous ", type, " ", c10::IntArrayRef(sizes),
                      " on ", options.device(), ", but is ", described(t));
  }
}

RecordedStates Running::begin(std::int64_t steps, const std::vector<StateProbe>& recorded, bool own,
                              std::optional<std::vector<at::Tensor>> into) {
  check_is_whole(Topic::simulate);
  RecordedStates states;
  const auto prepare = [&]() -> Numbers {
    check_weights();
    for (const StateProbe& requested : recorded) states.probes.push_back(probe(requested));
    if (into) check_recorded("into", *into, states.probes, /*own=*/false, steps, options());
    if (into) states.whole = std::move(*into);
    for (const Probe& probe : states.probes) {
      if (!into) states.whole.push_back(recorded_state(steps, probe.requested, options()));
      if (own && ranks_ != nullptr) states.own.push_back(recorded_state(steps, probe.neurons.numel(), options()));
    }
    if (ranks_ == nullptr) states.own = states.whole;
    if (own && device_.is_cpu()) cpu_steps().prepare();
    return {step(), steps, ranks_ == nullptr ? 0 : digest_of(recorded)};
  };
  const std::vector<Numbers> received = gather_notices(Topic::simulate, prepare);
  const Numbers& first = received[0];
  for (std::size_t rank = 1; rank < received.size(); ++rank) {
    const Numbers& theirs = received[rank];
    TORCH_CHECK(theirs[0] == first[0] && theirs[1] == first[1], "Network: rank ", rank, " of ", received.size(),
                " simulates ", steps_in_words(theirs[0], theirs[1]), ", but rank 0 ",
                steps_in_words(first[0], first[1]), ": all ranks must make the same calls");
    TORCH_CHECK(theirs[2] == first[2], "Network: rank ", rank, " of ", received.size(),
                " records other states than rank 0: all ranks must make the same calls");
  }
  return states;
}

std::vector<at::Tensor> Running::state() {
  check_is_whole(Topic::state);
  std::vector<Changing> now;
  std::vector<at::Tensor> copies;
  const auto is_part = [&](const Changing& c) { return ranks_ != nullptr && c.places.defined(); };
  const auto prepare = [&]() -> Numbers {
    now = changing();
    for (const Changing& c : now) {
      std::vector<std::int64_t> sizes = c.tensor.sizes().vec();
      if (is_part(c)) sizes.back() = c.whole;
      copies.push_back(is_part(c) ? at::zeros(sizes, c.tensor.options()) : c.tensor.clone());
    }
    return {step()};
  };
  const std::vector<Numbers> received = gather_notices(Topic::state, prepare);
  for (std::size_t rank = 1; rank < received.size(); ++rank)
    TORCH_CHECK(received[rank][0] == received[0][0], "Network: rank ", rank, " of ", received.size(), " is at step ",
                received[rank][0], ", but rank 0 at step ", received[0][0], ": they have no state together");
  for (std::size_t i = 0; i < now.size(); ++i)
    if (is_part(now[i]))
      join(Topic::state, std::min(now[i].whole, inputs_ * exchange_->most_neurons()), copies[i], now[i].tensor,
           now[i].places);
  return copies;
}

std::vector<at::Tensor> Running::own_state() const {
  std::vector<at::Tensor> tensors;
  for (const Changing& c : changing()) tensors.push_back(c.tensor);
  return tensors;
}

void Running::load_state(at::TensorList state) {
  std::vector<Changing> own;
  std::string wrong;
  std::int64_t step = 0;
  const std::vector<Numbers> received = gather_notices(Topic::load_state, [&]() -> Numbers {
    own = changing();
    if (own.size() != state.size())
      wrong = c10::str("state must have ", own.size(), " tensors, those of this network, but has ", state.size());
    for (std::size_t i = 0; wrong.empty() && i < own.size(); ++i) {
      const at::Tensor &mine = own[i].tensor, &given = state[i];
      std::vector<std::int64_t> sizes = mine.sizes().vec();
      if (own[i].places.defined()) sizes.back() = own[i].whole;
      const bool fits = given.defined() && given.layout() == at::kStrided && !given.is_meta() &&
                        given.sizes() == c10::IntArrayRef(sizes) && given.scalar_type() == mine.scalar_type();
      if (!fits)
        wrong = c10::str("state[", i, "] must be a dense ", mine.scalar_type(), " ", c10::IntArrayRef(sizes),
                         ", but is ", described(given));
    }
    constexpr std::int64_t most_steps = std::int64_t{1} << 62;
    if (wrong.empty()) {
      step = state[1].item<std::int64_t>();
      if (step < 0 || step >= most_steps) wrong = c10::str("a state's step must be from 0 to 2^62, but is ", step);
    }
    Digest digest;
    for (std::size_t i = 0; ranks_ != nullptr && wrong.empty() && i < state.size(); ++i) digest.add(state[i]);
    return {wrong.empty() ? 1 : 0, step, digest.sum(), is_whole_ ? 1 : 0};
  });
  bool all_are_whole = true;
  for (std::size_t rank = 0; rank < received.size(); ++rank) {
    const Numbers &theirs = received[rank], &first = received[0];
    all_are_whole = all_are_whole && theirs[3] == 1;
    if (!wrong.empty()) continue;
    TORCH_CHECK_VALUE(theirs[0] == 1, "Network: rank ", rank, " of ", received.size(),
                      " was given a state that it cannot load");
    TORCH_CHECK_VALUE(theirs[1] == first[1], "Network: rank ", rank, " of ", received.size(), " loads a state of step ",
                      theirs[1], ", but rank 0 one of step ", first[1]);
    TORCH_CHECK_VALUE(theirs[2] == first[2], "Network: rank ", rank, " of ", received.size(),
                      " loads other numbers than rank 0, of the same step");
  }
  TORCH_CHECK_VALUE(wrong.empty(), "Network: ", wrong);
  if (!all_are_whole) forget_exchanges();
  take_steps([&] {
    set_between_steps(false);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const at::Tensor& places = own[i].places;
      const bool is_part = ranks_ != nullptr && places.defined();
      own[i].tensor.copy_(is_part ? state[i].index_select(-1, places.to(state[i].device())) : state[i]);
    }
    if (cpu_steps_ != nullptr) cpu_steps_->wake();
  });
  is_whole_ = true;
}

// Resets exchanges after a failed call, because their sizes may differ between ranks. All ranks call this function.
void Running::forget_exchanges() {
  cpu_steps_ = nullptr;
  gpu_steps_.reset();
  if (exchange_) exchange_->forget();
}

void Running::arrive(std::int64_t step) {
  if (plastic_.empty()) return;
  void* const slot = buffer_.select(0, step % buffer_.size(0)).mutable_data_ptr();
  for (PlasticConnections& plastic : plastic_) plastic.arrive(step, slot);
}

void Running::fire(std::int64_t step, const std::vector<std::int64_t>& fired) {
  for (PlasticConnections& plastic : plastic_) plastic.fire(step, fired);
}

void Running::make_whole_drives() {
  own_columns_ = partition_.whole_columns(inputs_).to(buffer_.device());
  const auto spread = [&](const at::Tensor& own) {
    return at::zeros({inputs_ * partition_.whole()}, own.options()).index_copy_(0, own_columns_, own);
  };
  for (const PoissonLayer& drive : drives_)
    whole_drives_.push_back({.rates = spread(drive.rates), .weights = spread(drive.weights), .seed = drive.seed});
}

// Adds the drive. The drive of own neurons equals their part of the drive of the whole network.
at::Tensor Running::driven(const at::Tensor& arriving) {
  at::Tensor x = arriving;
  if (!partition_.is_whole() && size_ > 0 && !own_columns_.defined()) make_whole_drives();
  for (const PoissonLayer& drive : partition_.is_whole() ? drives_ : whole_drives_) {
    const auto draw = [&](const at::Tensor& to, const at::Tensor& weights, const at::Tensor& rates) {
      return std::get<0>(
          poisson_({to.unsqueeze(0)}, {}, {weights, rates}, false, false, {}, {}, drive.seed, step_))[0][0];
    };
    x = partition_.is_whole()
            ? draw(x, drive.weights, drive.rates)
            : x.add(draw(at::zeros_like(drive.rates), drive.weights, drive.rates).index_select(0, own_columns_));
  }
  return x;
}

const at::Tensor& Running::advance() {
  at::Tensor arriving = take_arrivals_(buffer_, step_);
  for (PlasticConnections& plastic : plastic_) plastic.operators().arrive(step_, arriving);
  if (between_.defined()) arriving.add_(take_arrivals_(between_, step_));
  if (current_.defined()) arriving.add_(current_);
  arriving = driven(arriving);
  const at::Tensor inputs = arriving.view({inputs_, 1, size_});
  for (const Group& group : groups_) {
    if (group.size() == 0) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(!group.cell->draws || partition_.is_whole(),
                                "Network: neurons that draw random numbers are shared by ranks on the CPU, and on GPUs "
                                "where sums need not be deterministic, but not so far by operators");
    std::vector<at::Tensor> mine;
    for (std::size_t k = 0; k < group.cell->inputs.size(); ++k)
      mine.push_back(inputs.select(0, static_cast<std::int64_t>(k)).narrow(1, group.begin, group.size()));
    const std::optional<at::Tensor> offset = group.seed ? std::optional(step_) : std::nullopt;
    const auto [outputs, states] =
        group.neuron(mine, group.states, group.params, false, false, {}, {}, group.seed, offset);
    spikes_.narrow(0, group.begin, group.size()).copy_(outputs[0][0]);
    for (std::size_t k = 0; k < states.size(); ++k) group.states[k].copy_(states[k]);  // graphs use the addresses
  }
  deliver_by_operators();
  for (PlasticConnections& plastic : plastic_) plastic.operators().fire(step_, spikes_);
  step_.add_(1);
  return spikes_;
}

// Deterministic sums are in fixed point, with a scale that depends on the largest weight and the number of connections.
// The last row, which has no connections, has an entry that accounts for the weights and connections of the other
// ranks, so that sums are the same for any number of ranks.
void Running::deliver_by_operators() {
  const std::int64_t rows = matrix_.indptr.numel() - 1;
  const Connections connections{matrix_.weights, matrix_.indices, matrix_.indptr, rows, columns_};
  const bool has_own_weights = matrix_.weights.numel() != 1;
  const auto send = [&](const at::Tensor& x, const at::Tensor& ring) {
    event_mv_delayed_(connections, x, matrix_.delays, ring, step_,
                      {.transpose = true, .graded = has_own_weights && block_ > 0, .deterministic = deterministic_});
  };
  if (rows == size_) return send(spikes_, buffer_);
  const std::int64_t whole = partition_.whole();
  const at::Tensor fired = spikes_.gt(0).to(spikes_.scalar_type());
  const at::Tensor of_all = ranks_ == nullptr ? fired : joined_spikes(fired);
  at::Tensor x = at::zeros({rows}, spikes_.options());
  if (has_own_weights) x.slice(0, rows - 1).fill_(std::ldexp(1.0, doublings_));
  x.slice(0, 0, size_).copy_(fired);
  if (between_.defined()) {
    send(x, buffer_);
    x.slice(0, 0, size_).zero_();
  }
  x.slice(0, size_, size_ + whole).copy_(of_all);
  send(x, between_.defined() ? between_ : buffer_);
}

// Gathers a byte for each neuron of each rank: [ranks, 1 + the most neurons of a rank]. The first byte is not 0 if the
// rank has failed, when `own` is not defined.
at::Tensor Running::gather_spikes(const at::Tensor& own) {
  const std::int64_t most = std::max<std::int64_t>(exchange_->most_neurons(), 1);
  const auto bytes = spikes_.options().dtype(at::kByte);
  const at::Tensor sent = at::zeros({1 + most}, bytes);
  at::Tensor all = at::empty({ranks_->size(), 1 + most}, bytes);
  if (own.defined())
    sent.slice(0, 1, 1 + size_).copy_(own);
  else
    sent.slice(0, 0, 1).fill_(1);
  if (awaited_ > 0) --awaited_;
  others_throw_too_ = true;
  all_gather(*ranks_, sent, all, "the spikes");
  return all;
}

bool Running::send_failed_spikes() noexcept {
  if (awaited_ == 0) return false;
  try {
    gather_spikes({});
  } catch (const std::exception&) {  // the other ranks time out
  }
  return true;
}

// Combines the spikes of all ranks. On a GPU, failures are not read, because that would wait for the host.
at::Tensor Running::joined_spikes(const at::Tensor& own) {
  const auto& slices = exchange_->slices();
  const at::Tensor all = gather_spikes(own);
  for (std::int64_t rank = 0; device_.is_cpu() && rank < ranks_->size(); ++rank)
    if (all.const_data_ptr<std::uint8_t>()[rank * all.size(1)] != 0)
      throw RankFailed(*ranks_, rank, Failure::within_step);
  others_throw_too_ = false;
  at::Tensor joined = at::empty({partition_.whole()}, own.options());
  for (std::size_t rank = 0; rank < slices.size(); ++rank)
    for (const Slice& slice : slices[rank])
      joined.slice(0, slice.begin, slice.end)
          .copy_(all[static_cast<std::int64_t>(rank)].slice(0, 1 + slice.first, 1 + slice.first + slice.size()));
  return joined;
}

CpuSteps& Running::cpu_steps() {
  if (cpu_steps_ == nullptr) cpu_steps_ = std::make_unique<CpuSteps>(*this);
  return *cpu_steps_;
}

GpuSteps* Running::gpu_steps() {
  if (!gpu_steps_) gpu_steps_ = GpuSteps::make(*this);
  return gpu_steps_->get();
}

}  // namespace spikeforge::simulation
