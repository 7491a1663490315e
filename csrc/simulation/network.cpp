#include "csrc/simulation/network.h"
#include "csrc/simulation/internal/description.h"
#include "csrc/simulation/internal/running.h"
#include "csrc/simulation/internal/spike_output.h"
#include "csrc/simulation/internal/undifferentiated.h"
#include "ops/common/checks.h"
#include "ops/common/connect_projection.h"
#include "ops/multistep/text_call.h"

#include <ATen/Context.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace spikeforge {

using simulation::DescribedPlastic;
using simulation::DescribedPopulation;
using simulation::DescribedProjection;
using simulation::Description;
using simulation::Running;
using simulation::Targets;

namespace simulation {

std::string listed(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::vector<std::string> names_of_params(const Cell& cell) {
  std::vector<std::string> names;
  for (const CellParam& param : cell.params) names.push_back(param.name);
  return names;
}

namespace {

// Columns of the matrix, neurons times inputs, are 32-bit numbers.
void check_columns(const Description& description, const std::string& name, std::int64_t size, const Cell& cell) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t inputs = std::max(description.inputs(), std::ssize(cell.inputs));
  const std::int64_t copies = description.options.copies, most_neurons = most / inputs / copies;
  TORCH_CHECK_VALUE(size <= most_neurons - description.size(), "Network: ", name, " has ", size,
                    " neurons, but a network whose neurons have ", inputs, " inputs has at most ", most_neurons,
                    copies > 1 ? c10::str(" in each of ", copies, " copies") : "", ", and this one has ",
                    description.size());
}

// Returns a copy of an argument, because the caller may write into it later.
at::Tensor copied(const at::Tensor& t) { return t.detach().clone(); }
at::Tensor copied_as(at::ScalarType type, const at::Tensor& t) {
  return t.defined() ? t.detach().to(type, /*non_blocking=*/false, /*copy=*/true) : t;
}

// Throws ValueError unless the values are finite in the type in which they are stored.
void check_finite(const std::string& what, const at::Tensor& numbers, at::ScalarType type) {
  const at::Tensor are_finite = numbers.to(type).isfinite();
  TORCH_CHECK_VALUE(are_finite.all().item<bool>(), "Network: ", what, " must be finite in ", type, ", but one is ",
                    numbers.masked_select(are_finite.logical_not())[0].item<double>());
}

void check_size(const std::string& population, const std::string& name, const PerNeuron& value, std::int64_t size,
                std::int64_t copies) {
  const at::Tensor& t = value.tensor();
  TORCH_CHECK_TYPE(t.layout() == at::kStrided, "Network: ", name, " of ", population, " must be dense, but is ",
                   t.layout());
  TORCH_CHECK_TYPE(at::isFloatingType(t.scalar_type()) || at::isIntegralType(t.scalar_type(), /*includeBool=*/true),
                   "Network: ", name, " of ", population, " must be real numbers, but is ", t.scalar_type());
  const bool is_of_copies = copies > 1 && t.dim() == 2 && t.size(0) == copies && (t.size(1) == 1 || t.size(1) == size);
  TORCH_CHECK_VALUE(value.is_number() || (t.dim() == 1 && t.size(0) == size) || is_of_copies, "Network: ", name, " of ",
                    population, " must be a number or have shape [", size, "]",
                    copies > 1 ? c10::str(", [", copies, ", 1] or [", copies, ", ", size, "]") : "", ", but has ",
                    t.sizes());
}

void check_names(const std::string& population, const char* kind, const NamedNumbers& given,
                 const std::vector<std::string>& known) {
  for (const auto& [name, value] : given)
    TORCH_CHECK_VALUE(std::ranges::find(known, name) != known.end(), "Network: the neuron of ", population, " has no ",
                      kind, " ", name, "; it has ", listed(known));
}

// Returns the neurons of a population and the index of their input with this name.
Targets targets_of(const Description& description, const Population& population, const std::string& into) {
  const DescribedPopulation& described = description.neurons[description.number_of(population)];
  const std::vector<std::string>& inputs = described.cell->inputs;
  const auto found = into.empty() ? inputs.begin() : std::ranges::find(inputs, into);
  TORCH_CHECK_VALUE(found != inputs.end(), "Network: the neuron of ", population.name, " has no input ", into,
                    "; its inputs: ", listed(inputs));
  return {population.begin, population.end, found - inputs.begin()};
}

// Returns a projection between populations, with copies of its tensors and names.
DescribedProjection described(Description& description, const Population& sources, const Population& targets,
                              const Projection& how, const std::string& into) {
  const std::size_t from = description.number_of(sources);
  const Targets to = targets_of(description, targets, into);
  DescribedProjection projection{{how}, to.input, from, description.number_of(targets)};
  Projection& own = projection.how;
  own.sources = {sources.begin, sources.end};
  own.targets = {to.begin, to.end};
  const std::string names = sources.name + " to " + targets.name;
  ops::sparse::check_projection("Network: " + names + ": ", own, description.size(), description.size(),
                                description.options.device, /*least_delay=*/1);
  own.source_indices = copied_as(at::kInt, how.source_indices);
  own.target_indices = copied_as(at::kInt, how.target_indices);
  own.weights = copied_as(description.weight_dtype, how.weights);
  if (own.weights.defined()) check_finite("weights of " + names, own.weights, description.weight_dtype);
  if (own.delays.defined()) {
    const bool is_short = own.delays.numel() == 0 || ops::sparse::limits_of(own.delay, own.delays).second < 255.5;
    own.delays = copied_as(is_short ? at::kByte : at::kInt, ops::sparse::whole_delays(own.delays));
  }
  own.rule = description.own(how.rule);
  own.weight.law = description.own(how.weight.law);
  own.delay.law = description.own(how.delay.law);
  return projection;
}

// Returns the parameters of a rule, in its order.
std::vector<double> params_of(const graph::Synapse& rule, const std::map<std::string, double>& given) {
  for (const auto& [name, value] : given)
    TORCH_CHECK_VALUE(std::ranges::find(rule.params, name) != rule.params.end(), "Network: the rule ", rule.name,
                      " has no parameter ", name, "; it has ", listed(rule.params));
  std::vector<double> params;
  for (const std::string& name : rule.params) {
    const auto found = given.find(name);
    TORCH_CHECK_VALUE(found != given.end(), "Network: the parameter ", name, " of the rule ", rule.name,
                      " is not given");
    params.push_back(found->second);
  }
  return params;
}

// Throws if sums on a GPU must be deterministic and the rule sends other values than weights. Only weights are summed
// in a fixed order, by a product before they change.
void check_deterministic(const Description& description, const graph::Synapse& rule) {
  if (!description.options.deterministic || description.options.device.is_cpu()) return;
  const bool weight_decays =
      std::ranges::any_of(rule.decays, [](const graph::Decay& decay) { return !decay.of_trace && decay.number == 0; });
  TORCH_CHECK_NOT_IMPLEMENTED(rule.pre.sends_by_itself && !weight_decays,
                              "Network: a deterministic network on a GPU learns by rules that send their weight, which "
                              "does not decay, but ",
                              rule.name, weight_decays ? "'s weight decays" : " has a send of its own");
}

// Throws for weights out of the bounds of their rule, which the first event would clamp.
void check_weights(const std::string& names, const Projection& how, const graph::Synapse& rule,
                   c10::ArrayRef<double> params, at::ScalarType type) {
  if (how.weight.law == "array" && how.weights.numel() == 0) return;
  NumberLaw law = how.weight;
  if (law.law != "uniform") law.second = 0;  // only the mean of a normal law is checked
  const auto rounded = [&](double number) { return at::scalar_tensor(number, at::kDouble).to(type).item<double>(); };
  const auto [least, most] = ops::sparse::limits_of(law, how.weights);
  const auto [low, high] = ops::plastic::weight_bounds(rule, params);
  TORCH_CHECK_VALUE(rounded(least) >= rounded(low) && rounded(most) <= rounded(high), "Network: ", names,
                    least == most ? ": weights are " : ": weights are from ", least,
                    least == most ? "" : " to " + c10::str(most), ", but the rule ", rule.name, " keeps them from ",
                    low, " to ", high, ": change its bounds, or the weights");
}

// Returns a copy of the rates of a drive, which are finite and not negative.
at::Tensor rates_of(const Description& description, const Population& targets, const PerNeuron& rate) {
  check_size(targets.name, "rate", rate, targets.size(), description.options.copies);
  at::Tensor rates = rate.tensor().detach().to(c10::kCPU, at::kDouble).clone().contiguous();
  const auto* const numbers = rates.const_data_ptr<double>();
  const double most =
      description.dtype == at::kDouble ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const auto* const wrong =
      std::find_if(numbers, numbers + rates.numel(), [&](double rate) { return !(rate >= 0 && rate <= most); });
  TORCH_CHECK_VALUE(wrong == numbers + rates.numel(), "Network: the rate that drives ", targets.name,
                    " must be finite and not negative, but is ", *wrong);
  return rates;
}

// Returns a copy of the weights of a drive, which are finite.
at::Tensor weights_of(const Description& description, const Population& targets, const PerNeuron& weight) {
  check_size(targets.name, "weight", weight, targets.size(), description.options.copies);
  check_finite("the weight of what drives " + targets.name, weight.tensor().detach(), description.dtype);
  return weight.tensor().detach().to(c10::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

// Returns a copy of a current, which is finite.
at::Tensor current_of(const Description& description, const Population& targets, const PerNeuron& current) {
  check_size(targets.name, "current", current, targets.size(), description.options.copies);
  check_finite("the current of " + targets.name, current.tensor().detach(), description.dtype);
  return copied(current.tensor());
}

}  // namespace

std::int64_t Description::inputs() const {
  std::size_t most = 1;
  for (const DescribedPopulation& described : neurons) most = std::max(most, described.cell->inputs.size());
  return static_cast<std::int64_t>(most);
}

std::size_t Description::number_of(const Population& population) const {
  const auto first = std::ranges::lower_bound(populations, population.begin, {}, &Population::begin);
  const auto found = std::find(first, populations.end(), population);
  TORCH_CHECK_VALUE(found != populations.end(), "Network: ", population.name, ", neurons ", population.begin, " to ",
                    population.end, ", is no population of this network");
  return static_cast<std::size_t>(found - populations.begin());
}

}  // namespace simulation

PerNeuron::PerNeuron(double number) : numbers_(at::scalar_tensor(number, at::kDouble)) {}
PerNeuron::PerNeuron(at::Tensor numbers) : numbers_(std::move(numbers)) {
  TORCH_CHECK_VALUE(numbers_.defined(), "Network: values per neuron must be a defined tensor");
}

Network::Network(const NetworkOptions& options) : description_(std::make_unique<Description>()) {
  description_->options = options;
  const at::ScalarType dtype = options.dtype.value_or(c10::get_default_dtype_as_scalartype());
  const at::ScalarType weights = options.weight_dtype.value_or(dtype);
  const bool is_narrow = weights == at::kFloat || weights == at::kHalf || weights == at::kBFloat16;
  const bool fits = (dtype == at::kFloat && is_narrow) || (dtype == at::kDouble && weights == at::kDouble);
  TORCH_CHECK_TYPE(fits,
                   "Network: dtype and weight_dtype must both be float64, or dtype float32 with weight_dtype float16, "
                   "bfloat16 or float32, but are ",
                   dtype, " and ", weights);
  TORCH_CHECK_VALUE(options.device.is_cpu() || options.device.is_cuda(),
                    "Network: device must be a CPU or a GPU, but is ", options.device);
  TORCH_CHECK_VALUE(options.device.is_cpu() || at::hasCUDA(), "Network: device is ", options.device,
                    ", but there is no GPU that torch can use");
  constexpr std::int64_t most_copies = std::int64_t{1} << 20;
  TORCH_CHECK_VALUE(0 < options.copies && options.copies <= most_copies, "Network: copies must be from 1 to ",
                    most_copies, ", but are ", options.copies);
  TORCH_CHECK_VALUE(options.noise_seeds.empty() || std::ssize(options.noise_seeds) == options.copies,
                    "Network: noise_seeds must have one seed for each of ", options.copies, " copies, but has ",
                    options.noise_seeds.size());
  TORCH_CHECK_NOT_IMPLEMENTED(options.copies == 1 || options.ranks == nullptr,
                              "Network: a network that ranks share has one copy, but copies is ", options.copies);
  description_->options.device = ops::numbered(options.device);
  description_->dtype = dtype;
  description_->weight_dtype = weights;
  description_->options.dtype = dtype;
  description_->options.weight_dtype = weights;
}
Network::Network(Network&&) noexcept = default;
Network& Network::operator=(Network&&) noexcept = default;
Network::~Network() = default;

Population Network::populate(const std::string& name, std::int64_t size, const Neuron& neuron,
                             const NamedNumbers& params, const NamedNumbers& states, const std::string& area) {
  TORCH_CHECK(running_ == nullptr, "Network: populate must come before the network is built or simulated");
  TORCH_CHECK_VALUE(size >= 0, "Network: the size of ", name, " must not be negative, but is ", size);
  TORCH_CHECK_NOT_IMPLEMENTED(area.empty() || description_->options.copies == 1, "Network: ", name,
                              " is in an area, but networks with areas have one copy");
  const simulation::Undifferentiated mode;
  DescribedPopulation described{
      .neuron = neuron, .cell = ops::cell_of(neuron.text(), "Network"), .states = {}, .params = {}, .area = area};
  const Cell& cell = *described.cell;
  simulation::check_columns(*description_, name, size, cell);
  simulation::check_spike_output(name, described.cell->graph);
  const std::vector<std::string> known_params = simulation::names_of_params(cell);
  simulation::check_names(name, "state", states, cell.states);
  simulation::check_names(name, "parameter", params, known_params);
  const auto take = [&](const NamedNumbers& given, const std::string& key, std::optional<double> initial) {
    const auto found = given.find(key);
    TORCH_CHECK_VALUE(found != given.end() || initial, "Network: the parameter ", key, " of ", name, " is not given");
    PerNeuron value = found != given.end() ? found->second : PerNeuron(*initial);
    simulation::check_size(name, key, value, size, description_->options.copies);
    return PerNeuron(simulation::copied(value.tensor()));
  };
  for (const graph::State& state : described.cell->graph.signature().states)
    described.states.push_back(take(states, state.name, state.initial));
  for (const std::string& key : known_params) described.params.push_back(take(params, key, std::nullopt));
  const std::int64_t begin = description_->size();
  description_->populations.push_back({name, begin, begin + size});
  description_->neurons.push_back(std::move(described));
  return description_->populations.back();
}

void Network::project(const Population& sources, const Population& targets, const Projection& how,
                      const std::string& into) {
  TORCH_CHECK(running_ == nullptr, "Network: project must come before the network is built or simulated");
  const simulation::Undifferentiated mode;
  description_->projections.push_back(simulation::described(*description_, sources, targets, how, into));
}

std::size_t Network::project(const Population& sources, const Population& targets, const Projection& how,
                             const Plasticity& plasticity, const std::string& into) {
  TORCH_CHECK(running_ == nullptr, "Network: project must come before the network is built or simulated");
  TORCH_CHECK_NOT_IMPLEMENTED(description_->ranks() == 1,
                              "Network: projections that learn are those of one process so far, but ",
                              description_->ranks(), " ranks share this network");
  const simulation::Undifferentiated mode;
  auto rule = ops::plastic::rule_of(plasticity.rule, "Network");
  simulation::check_deterministic(*description_, rule->synapse);
  std::vector<double> params = simulation::params_of(rule->synapse, plasticity.params);
  // Throws for illegal parameters.
  const ops::plastic::BoundRule checked(rule, params, ops::dtype_of(description_->dtype), "Network");
  simulation::DescribedProjection projection = simulation::described(*description_, sources, targets, how, into);
  simulation::check_weights(sources.name + " to " + targets.name, projection.how, rule->synapse, params,
                            description_->weight_dtype);
  description_->plastic.push_back({{std::move(projection.how)}, projection.input, std::move(rule), std::move(params)});
  return description_->plastic.size() - 1;
}

Learned Network::learned(std::size_t projection, std::int64_t copy) {
  const simulation::Undifferentiated mode;
  Running& now = running();
  now.guard().check_is_whole();
  TORCH_CHECK_VALUE(projection < description_->plastic.size(), "Network: ", description_->plastic.size(),
                    " projections learn, so that there is no number ", projection);
  now.state().check_copy(copy);
  return now.state().plastic_of(projection, copy).learned(now.state().steps());
}

void Network::modulate(const NamedNumbers& signals) {
  const simulation::Undifferentiated mode;
  Running& now = running();
  std::vector<std::tuple<simulation::PlasticConnections*, std::size_t, at::Tensor>> found;
  for (const auto& [signal, value] : signals) {
    const std::size_t before = found.size();
    for (std::size_t i = 0; i < description_->plastic.size(); ++i) {
      const graph::Synapse& rule = description_->plastic[i].rule->synapse;
      const auto at = std::ranges::find(rule.signals, signal);
      if (at == rule.signals.end()) continue;
      const NeuronRange& targets = description_->plastic[i].how.targets;
      const std::int64_t copies = now.state().copies;
      simulation::check_size("the rule " + rule.name, signal, value, targets.end - targets.begin, copies);
      for (std::int64_t copy = 0; copy < copies; ++copy) {
        at::Tensor own = value.has_copies() ? value.tensor().select(0, copy) : value.tensor();
        if (own.numel() == 1) own = own.reshape({});
        found.emplace_back(&now.state().plastic_of(i, copy), static_cast<std::size_t>(at - rule.signals.begin()), own);
      }
    }
    TORCH_CHECK_VALUE(found.size() > before, "Network: no projection learns by a rule with the signal ", signal);
    simulation::check_finite(signal, value.tensor().detach(), description_->dtype);
  }
  for (const auto& [connections, number, value] : found) connections->set_signal(number, value);
}

std::size_t Network::drive(const Population& targets, const PerNeuron& rate, const DriveOptions& options) {
  const simulation::Undifferentiated mode;
  const Targets to = simulation::targets_of(*description_, targets, options.into);
  at::Tensor rates = simulation::rates_of(*description_, targets, rate);
  description_->drives.push_back(
      {targets, to, std::move(rates), simulation::weights_of(*description_, targets, options.weight)});
  if (running_ != nullptr) running_->set_inputs(*description_);
  return description_->drives.size() - 1;
}

void Network::set_drive(std::size_t number, const PerNeuron& rate) {
  const simulation::Undifferentiated mode;
  TORCH_CHECK_VALUE(number < description_->drives.size(), "Network: there are ", description_->drives.size(),
                    " drives, but no number ", number);
  simulation::DescribedDrive& drive = description_->drives[number];
  drive.rates = simulation::rates_of(*description_, drive.population, rate);
  if (running_ != nullptr) running_->set_inputs(*description_);
}

std::size_t Network::inject(const Population& targets, const PerNeuron& current, const std::string& into) {
  const Targets to = simulation::targets_of(*description_, targets, into);
  const simulation::Undifferentiated mode;
  description_->currents.push_back({targets, to, simulation::current_of(*description_, targets, current)});
  if (running_ != nullptr) running_->set_inputs(*description_);
  return description_->currents.size() - 1;
}

void Network::set_current(std::size_t number, const PerNeuron& current) {
  const simulation::Undifferentiated mode;
  TORCH_CHECK_VALUE(number < description_->currents.size(), "Network: there are ", description_->currents.size(),
                    " currents, but no number ", number);
  simulation::DescribedCurrent& own = description_->currents[number];
  own.current = simulation::current_of(*description_, own.population, current);
  if (running_ != nullptr) running_->set_inputs(*description_);
}

at::Tensor Network::state(const Population& population, const std::string& name) {
  const simulation::Undifferentiated mode;
  Running& now = running();
  now.guard().check_is_whole();
  return now.state().state_of(population, name);
}

at::Tensor Network::param(const Population& population, const std::string& name) {
  const simulation::Undifferentiated mode;
  return running().state().param_of(population, name);
}

void Network::set_param(const Population& population, const std::string& name, const PerNeuron& value) {
  const simulation::Undifferentiated mode;
  simulation::check_size(population.name, name, value, population.size(), description_->options.copies);
  running().set_param(population, name, value.tensor().detach());
}

void Network::silence(const Population& population, const at::Tensor& neurons, bool silent,
                      std::optional<std::int64_t> copy) {
  const simulation::Undifferentiated mode;
  running().silence(population, neurons, silent, copy);
}

at::Tensor Network::step(std::int64_t steps, const std::vector<StepInput>& inputs) {
  const simulation::Undifferentiated mode;
  return running().step(steps, inputs);
}

Running& Network::running() {
  const simulation::Undifferentiated mode;
  if (running_ == nullptr) {
    const std::int64_t number = description_->ranks() > 1 ? simulation::check_alike(*description_) : 0;
    running_ = std::make_unique<Running>(*description_, number);
    for (DescribedProjection& projection : description_->projections) projection.forget_arrays();
    for (DescribedPlastic& projection : description_->plastic) projection.forget_arrays();
  }
  return *running_;
}

const Connectivity& Network::build() { return running().state().matrix; }
Connectivity Network::connectivity() {
  const simulation::Undifferentiated mode;
  return running().state().connectivity();
}
std::int64_t Network::size() const { return description_->size(); }
std::int64_t Network::step() { return running_ == nullptr ? 0 : running_->state().steps(); }
const std::vector<Population>& Network::populations() const { return description_->populations; }
const NetworkOptions& Network::options() const { return description_->options; }
std::vector<at::Tensor> Network::state() { return running().save_state(); }
void Network::load_state(at::TensorList state) {
  const simulation::Undifferentiated mode;
  running().load_state(state);
}

}  // namespace spikeforge
