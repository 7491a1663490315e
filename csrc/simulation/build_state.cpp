#include "csrc/neuron/random.h"
#include "csrc/simulation/internal/call_guard.h"
#include "csrc/simulation/internal/matrix_layout.h"
#include "csrc/simulation/internal/plastic.h"
#include "csrc/simulation/internal/state.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

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

std::int64_t seed_of(std::int64_t seed, Stream stream, std::size_t number) {
  const PhiloxWords words = philox({{static_cast<unsigned>(number), static_cast<unsigned>(stream), 0, 0x6e657477U}},
                                   static_cast<unsigned long long>(seed));
  const auto key = static_cast<unsigned long long>(words.word[1]) << 32 | words.word[0];
  return static_cast<std::int64_t>(key);
}

// Returns the seeds of the random numbers that copies draw.
std::vector<at::Tensor> seeds_of(const Description& description, Stream stream, std::size_t number) {
  std::vector<at::Tensor> seeds;
  for (std::int64_t copy = 0; copy < description.options.copies; ++copy)
    seeds.push_back(at::scalar_tensor(seed_of(description.noise_seed(copy), stream, number), at::kLong));
  return seeds;
}

// Returns the values of own neurons.
PerNeuron own_of(const PerNeuron& value, const Population& population, const Slice& slice) {
  return OwnColumns{0, slice.size(), slice.begin - population.begin}.of(value.tensor());
}

// Returns a value of several neighbouring populations: 0-dimensional if it is the same for all, else one element per
// neuron of all copies.
at::Tensor gathered(const std::vector<PerNeuron>& values, const std::vector<std::int64_t>& sizes, std::int64_t copies,
                    const at::TensorOptions& options, bool may_be_one) {
  const auto is_same = [&](const PerNeuron& value) {
    return value.is_number() && value.tensor().item<double>() == values[0].tensor().item<double>();
  };
  if (may_be_one && values[0].is_number() && std::ranges::all_of(values, is_same))
    return values[0].tensor().detach().to(options.device(c10::kCPU));
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < values.size(); ++i)
    parts.push_back(values[i].tensor().detach().to(options).expand({copies, sizes[i]}));
  return at::cat(parts, 1).flatten().contiguous();
}

constexpr std::int64_t most_block = 1024;  // the maximum number of steps without an exchange

int bits_of(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))); }

// The range of delays and weights of the connections of a rank, or of all ranks. Delays determine when the spikes of
// other ranks arrive.
struct Extent {
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

void make_groups(NetworkState& state, const Description& description) {
  const auto options = at::TensorOptions(description.dtype).device(description.options.device);
  for (std::size_t first = 0, last = 0; first < state.populations.size(); first = last) {
    const DescribedPopulation& alike = description.neurons[first];
    while (last < state.populations.size() && description.neurons[last].neuron.text() == alike.neuron.text()) ++last;
    const Slice& last_slice = state.partition[last - 1];
    Group group{.begin = state.partition[first].first,
                .end = last_slice.first + last_slice.size(),
                .whole_begin = state.populations[first].begin,
                .whole_end = state.populations[last - 1].end,
                .neuron = alike.neuron,
                .cell = alike.cell,
                .states = {},
                .params = {},
                .seeds = {}};
    std::vector<std::int64_t> sizes;
    for (std::size_t i = first; i < last; ++i) sizes.push_back(state.partition[i].size());
    const auto gather = [&](std::vector<PerNeuron> DescribedPopulation::*list, std::size_t k, bool may_be_one) {
      std::vector<PerNeuron> values;
      for (std::size_t i = first; i < last; ++i)
        values.push_back(own_of((description.neurons[i].*list)[k], state.populations[i], state.partition[i]));
      return gathered(values, sizes, state.copies, options, may_be_one);
    };
    for (std::size_t k = 0; k < alike.states.size(); ++k)
      group.states.push_back(gather(&DescribedPopulation::states, k, false));
    for (std::size_t k = 0; k < alike.params.size(); ++k)
      group.params.push_back(gather(&DescribedPopulation::params, k, true));
    if (group.cell->draws) group.seeds = seeds_of(description, Stream::group, state.groups.size());
    state.groups.push_back(std::move(group));
    state.group_of.resize(last, state.groups.size() - 1);
  }
}

void connect_part(NetworkState& state, const Description& description, const std::vector<Projection>& projections) {
  const std::int64_t whole = state.partition.whole(), inputs = description.inputs();
  ConnectivityPart part{
      .columns = at::full({inputs * whole}, -1, at::kInt), .first_rows = {}, .rows = state.copy_size + whole + 1};
  part.columns.index_copy_(0, state.partition.whole_columns(inputs), at::arange(state.copy_columns, at::kInt));
  part.columns = part.columns.to(description.options.device);
  for (const DescribedProjection& p : description.projections) {
    const bool stays = stays_within(description, p.sources, p.targets);
    part.first_rows.push_back(stays ? state.partition[p.sources].first : state.copy_size + p.how.sources.begin);
  }
  state.matrix = spikeforge::connect_part(whole, inputs * whole, projections, part, description.options.seed,
                                          description.weight_dtype, description.options.device);
}

void draw_connections(NetworkState& state, const Description& description) {
  std::vector<Projection> projections;
  for (const DescribedProjection& described : description.projections) {
    Projection p = described.how;
    p.targets.begin += described.input * state.partition.whole();
    p.targets.end += described.input * state.partition.whole();
    projections.push_back(std::move(p));
  }
  const NetworkOptions& options = description.options;
  const bool all_stay = std::ranges::all_of(description.projections, [&](const DescribedProjection& p) {
    return stays_within(description, p.sources, p.targets);
  });
  if (all_stay && description.ranks() == 1)
    state.matrix = spikeforge::connect(state.copy_size, state.copy_columns, projections, options.seed,
                                       description.weight_dtype, options.device);
  else
    connect_part(state, description, projections);
  if (options.device.is_cpu()) sort_rows(state.matrix);
  if (options.device.is_cuda()) state.near = near_first(state.matrix);
}

void make_rings(NetworkState& state, const Description& description, const Extent& own, const Extent& all) {
  bool any_within = false, any_between = false;
  for (const DescribedProjection& p : description.projections)
    (stays_within(description, p.sources, p.targets) ? any_within : any_between) = true;
  if (own.connections > 0)
    state.doublings =
        bits_of(all.connections) - bits_of(own.connections) + static_cast<int>(all.exponent - own.exponent);
  if (any_between) {
    constexpr std::int64_t most_places = std::int64_t{1} << 32;  // places are sent as 32-bit numbers
    state.block = std::clamp<std::int64_t>(most_places / std::max<std::int64_t>(state.partition.whole(), 1), 1,
                                           all.least_between);
  }
  const auto options = at::TensorOptions(description.dtype).device(state.device);
  state.ring = in_large_pages(at::zeros({all.most + 1, state.columns}, options));
  const bool sums_are_ordered = description.options.device.is_cpu() || state.is_deterministic;
  if (any_within && any_between && sums_are_ordered)
    state.between = in_large_pages(at::zeros({all.most + 1, state.columns}, options));
}

}  // namespace

void set_drives(NetworkState& state, const Description& description) {
  state.drives.clear();
  std::vector<at::Tensor> taken;  // bool: columns with input in each layer
  for (const DescribedDrive& described : description.drives) {
    const Targets& to = described.targets;
    const std::int64_t begin = to.input * state.partition.whole() + to.begin, end = begin + to.end - to.begin;
    const at::Tensor is_driven = (described.weights.dim() == 0 ? at::ones({}, at::kBool) : described.weights.ne(0))
                                     .expand({state.copies, end - begin});
    const auto is_free = [&](const at::Tensor& columns) {
      return !columns.slice(1, begin, end).logical_and(is_driven).any().item<bool>();
    };
    const auto layer = static_cast<std::size_t>(std::ranges::find_if(taken, is_free) - taken.begin());
    if (layer == taken.size()) {
      taken.push_back(at::zeros({state.copies, state.inputs * state.partition.whole()}, at::kBool));
      state.drives.push_back({.rates = at::zeros({state.columns}, state.ring.options()),
                              .weights = at::zeros({state.columns}, state.ring.options()),
                              .seeds = seeds_of(description, Stream::drive, layer)});
    }
    taken[layer].slice(1, begin, end).logical_or_(is_driven);
    const OwnColumns own = own_columns(to, state);
    const auto set = [&](const at::Tensor& all, const at::Tensor& values) {
      const at::Tensor to = state.of_columns(all, own);
      to.copy_(at::where(own.of(is_driven).to(to.device()), own.of(values).to(to.options()), to));
    };
    set(state.drives[layer].rates, described.rates);
    set(state.drives[layer].weights, described.weights);
  }
}

void set_currents(NetworkState& state, const Description& description) {
  if (description.currents.empty()) return;
  state.current = at::zeros({state.columns}, state.options());
  for (const DescribedCurrent& described : description.currents) {
    const OwnColumns own = own_columns(described.targets, state);
    state.of_columns(state.current, own).add_(own.of(described.current).to(state.ring.options()));
  }
}

NetworkState build_state(const Description& description, CallGuard& guard) {
  NetworkState state(description);
  Extent own;
  const Extent all(guard.gather_notices(Topic::delays, [&] {
    guard.make_exchange(description);
    make_groups(state, description);
    draw_connections(state, description);
    const Connectivity& matrix = state.matrix;
    const bool has_between = matrix.indptr.numel() - 1 > state.copy_size;
    own = {matrix, has_between ? matrix.indptr[state.copy_size].item<std::int64_t>() : matrix.indices.numel()};
    return own.numbers();
  }));
  guard.gather_notices(Topic::built, [&]() -> Numbers {
    make_rings(state, description, own, all);
    if (guard.is_shared()) guard.exchange().set_block(state.block);
    state.step = at::zeros({}, state.options().dtype(at::kLong));
    state.spikes = at::zeros({state.size}, state.options());
    set_drives(state, description);
    set_currents(state, description);
    for (std::size_t i = 0; i < description.plastic.size(); ++i)
      for (std::int64_t copy = 0; copy < state.copies; ++copy)
        state.plastic.emplace_back(description.plastic[i], description, state.copy_columns,
                                   seed_of(description.options.seed, Stream::plastic, i));
    return {};
  });
  return state;
}

}  // namespace spikeforge::simulation
