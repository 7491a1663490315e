#include <spikeforge/neuron/random.h>
#include <spikeforge/ops/event.h>
#include <spikeforge/simulation/internal/cpu_steps.h>
#include <spikeforge/simulation/internal/gpu_steps.h>
#include <spikeforge/simulation/internal/near_first.h>
#include <spikeforge/simulation/internal/plastic_operators.h>
#include <spikeforge/simulation/internal/running.h>
#include <spikeforge/simulation/internal/sort_rows.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace spikeforge::simulation {
namespace {

// Different for each group, each layer of drives, each projection that learns, and from those of connections.
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

// A number of several neighbouring populations: one where all have the same, else [their neurons].
at::Tensor gathered(const std::vector<const PerNeuron*>& values, const std::vector<std::int64_t>& sizes,
                    const at::TensorOptions& options, bool may_be_one) {
  const auto is_same = [&](const PerNeuron* value) {
    return value->is_number() && value->tensor().item<double>() == values[0]->tensor().item<double>();
  };
  if (may_be_one && values[0]->is_number() && std::ranges::all_of(values, is_same))
    return values[0]->tensor().detach().to(options.device(c10::kCPU));
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < values.size(); ++i) parts.push_back(spread(*values[i], sizes[i], options));
  return at::cat(parts).contiguous();
}

}  // namespace

Running::Running(const Description& description)
    : populations_(description.populations),
      deterministic_(description.options.deterministic),
      size_(description.size()),
      poisson_("neuron poisson_input(x;; weight, rate) { return x + weight * poisson(rate) }") {
  const auto options = at::TensorOptions(description.dtype).device(description.options.device);
  make_groups(description);
  std::size_t inputs = 1;
  for (const Group& group : groups_) inputs = std::max(inputs, group.cell->inputs.size());
  columns_ = size_ * static_cast<std::int64_t>(inputs);
  connect(description);
  const at::Tensor& delays = matrix_.delays;
  const std::int64_t slots = delays.numel() == 0 ? 2 : delays.max().item<std::int64_t>() + 1;
  buffer_ = at::zeros({slots, columns_}, options);
  step_ = at::zeros({}, options.dtype(at::kLong));
  weights_at_ = matrix_.weights.const_data_ptr();
  spikes_ = at::zeros({size_}, options);
  make_drives(description);
  make_current(description);
  for (const DescribedPlastic& plastic : description.plastic)
    plastic_.emplace_back(plastic, description, columns_,
                          seed_of(description.options.seed, Stream::plastic, plastic_.size()).item<std::int64_t>());
}

Running::~Running() = default;

void Running::make_groups(const Description& description) {
  const auto options = at::TensorOptions(description.dtype).device(description.options.device);
  for (std::size_t first = 0, last = 0; first < populations_.size(); first = last) {
    const DescribedPopulation& alike = description.neurons[first];
    while (last < populations_.size() && description.neurons[last].neuron.text() == alike.neuron.text()) ++last;
    Group group{.begin = populations_[first].begin,
                .end = populations_[last - 1].end,
                .neuron = alike.neuron,
                .cell = alike.cell,
                .states = {},
                .params = {},
                .seed = {}};
    std::vector<std::int64_t> sizes;
    for (std::size_t i = first; i < last; ++i) sizes.push_back(populations_[i].size());
    const auto gather = [&](std::vector<PerNeuron> DescribedPopulation::*list, std::size_t k, bool may_be_one) {
      std::vector<const PerNeuron*> values;
      for (std::size_t i = first; i < last; ++i) values.push_back(&(description.neurons[i].*list)[k]);
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

void Running::connect(const Description& description) {
  std::vector<Projection> projections;
  for (const DescribedProjection& described : description.projections) {
    Projection p = described.how;
    p.targets.begin += described.input * size_;
    p.targets.end += described.input * size_;
    projections.push_back(std::move(p));
  }
  const NetworkOptions& options = description.options;
  matrix_ = spikeforge::connect(size_, columns_, projections, options.seed, description.weight_dtype, options.device);
  const bool is_connected = matrix_.indices.numel() > 0;
  TORCH_CHECK_VALUE(!is_connected || matrix_.delays.min().item<std::int64_t>() >= 1,
                    "Network: a delay must be at least 1 step, but one is 0");
  if (options.device.is_cpu()) sort_rows(matrix_);
  if (options.device.is_cuda()) near_ = near_first(matrix_);
}

void Running::make_drives(const Description& description) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> taken;  // of each layer
  for (const DescribedDrive& described : description.drives) {
    const Targets& to = described.targets;
    const std::int64_t begin = to.input * size_ + to.begin, end = to.input * size_ + to.end;
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
    drives_[layer].rates.slice(0, begin, end).copy_(described.rates);
    drives_[layer].weights.slice(0, begin, end).fill_(described.weight);
  }
}

void Running::make_current(const Description& description) {
  if (description.currents.empty()) return;
  current_ = at::zeros({columns_}, buffer_.options());
  for (const DescribedCurrent& described : description.currents) {
    const Targets& to = described.targets;
    current_.slice(0, to.input * size_ + to.begin, to.input * size_ + to.end)
        .add_(described.current.to(buffer_.options()));
  }
}

Probe Running::probe(const StateProbe& asked) const {
  const Population& population = asked.population;
  const auto found = std::ranges::find_if(populations_, [&](const Population& p) {
    return p.name == population.name && p.begin == population.begin && p.end == population.end;
  });
  TORCH_CHECK_VALUE(found != populations_.end(), "simulate: ", population.name, " is no population of this network");
  const Group* const group = &groups_[group_of_[static_cast<std::size_t>(found - populations_.begin())]];
  const std::vector<std::string>& states = group->cell->states;
  const auto state = std::ranges::find(states, asked.state);
  if (state == states.end()) {
    std::string known;
    for (const std::string& name : states) known += (known.empty() ? "" : ", ") + name;
    TORCH_CHECK_VALUE(false, "simulate: the neuron of ", population.name, " has no state ", asked.state, "; it has ",
                      known.empty() ? "none" : known);
  }
  for (const std::int64_t neuron : asked.neurons)
    TORCH_CHECK_VALUE(0 <= neuron && neuron < population.size(), "simulate: neurons of ", population.name,
                      " must be numbers from 0 to ", population.size() - 1, ", but one is ", neuron);
  const at::Tensor numbers = at::tensor(asked.neurons, at::kLong).add_(population.begin - group->begin);
  return {group, static_cast<std::size_t>(state - states.begin()), numbers.to(buffer_.device())};
}

std::vector<at::Tensor> Running::changing() const {
  std::vector<at::Tensor> tensors{buffer_, step_, spikes_};
  for (const Group& group : groups_) tensors.insert(tensors.end(), group.states.begin(), group.states.end());
  for (const PlasticConnections& plastic : plastic_) {
    const std::vector<at::Tensor> more = plastic.changing();
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  return tensors;
}

void Running::check_weights() const {
  const at::Tensor& weights = matrix_.weights;
  const bool are_there = weights.const_data_ptr() == weights_at_ && weights.storage().nbytes() >= weights.nbytes();
  const bool are_all_there = std::ranges::all_of(plastic_, [](const PlasticConnections& p) { return p.are_there(); });
  TORCH_CHECK_VALUE(are_there && are_all_there,
                    "Network: the weights of a built network may be written, but not resized");
}

std::vector<at::Tensor> Running::state() const {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& t : changing()) copies.push_back(t.clone());
  return copies;
}

void Running::load_state(at::TensorList state) {
  const std::vector<at::Tensor> tensors = changing();
  bool fits = tensors.size() == state.size();
  for (std::size_t i = 0; fits && i < tensors.size(); ++i)
    fits = state[i].defined() && state[i].sizes() == tensors[i].sizes() &&
           state[i].scalar_type() == tensors[i].scalar_type();
  TORCH_CHECK_VALUE(fits, "Network: this is the state of another network: its sizes or types are others");
  constexpr std::int64_t most_steps = std::int64_t{1} << 62;
  const auto step = state[1].item<std::int64_t>();
  TORCH_CHECK_VALUE(0 <= step && step < most_steps, "Network: a state's step must be from 0 to 2^62, but is ", step);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(state[i]);
}

void Running::arrive(std::int64_t step) {
  if (plastic_.empty()) return;
  void* const slot = buffer_.select(0, step % buffer_.size(0)).mutable_data_ptr();
  for (PlasticConnections& plastic : plastic_) plastic.arrive(step, slot);
}

void Running::fire(std::int64_t step, const std::vector<std::int64_t>& fired) {
  for (PlasticConnections& plastic : plastic_) plastic.fire(step, fired);
}

const at::Tensor& Running::advance() {
  at::Tensor arriving = take_arrivals_(buffer_, step_);
  for (PlasticConnections& plastic : plastic_) plastic.operators().arrive(step_, arriving);
  if (current_.defined()) arriving.add_(current_);
  for (const PoissonLayer& drive : drives_) {
    const auto [driven, none] =
        poisson_({arriving.unsqueeze(0)}, {}, {drive.weights, drive.rates}, false, false, {}, {}, drive.seed, step_);
    arriving = driven[0][0];
  }
  const at::Tensor inputs = arriving.view({-1, 1, size_});
  for (const Group& group : groups_) {
    if (group.size() == 0) continue;
    std::vector<at::Tensor> mine;
    for (std::size_t k = 0; k < group.cell->inputs.size(); ++k)
      mine.push_back(inputs.select(0, static_cast<std::int64_t>(k)).narrow(1, group.begin, group.size()));
    const std::optional<at::Tensor> offset = group.seed ? std::optional(step_) : std::nullopt;
    const auto [outputs, states] =
        group.neuron(mine, group.states, group.params, false, false, {}, {}, group.seed, offset);
    spikes_.narrow(0, group.begin, group.size()).copy_(outputs[0][0]);
    for (std::size_t k = 0; k < states.size(); ++k) group.states[k].copy_(states[k]);  // whose addresses graphs know
  }
  const Connections connections{matrix_.weights, matrix_.indices, matrix_.indptr, size_, columns_};
  event_mv_delayed_(connections, spikes_, matrix_.delays, buffer_, step_,
                    {.transpose = true, .deterministic = deterministic_});
  for (PlasticConnections& plastic : plastic_) plastic.operators().fire(step_, spikes_);
  step_.add_(1);
  return spikes_;
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
