// The interface for Python: operators of the namespace spikeforge_simulation, which python/spikeforge/simulation.py
// calls, on an object that holds a Network. Populations are identified by their index.
#include "csrc/simulation/internal/matrix_layout.h"
#include "csrc/simulation/internal/notices.h"
#include "csrc/simulation/internal/running.h"
#include "csrc/simulation/internal/undifferentiated.h"
#include "csrc/simulation/network.h"
#include "ops/common/library.h"
#include "ops/common/plastic.h"

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <atomic>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge::simulation {
namespace {

struct HeldNetwork : torch::CustomClassHolder {
  explicit HeldNetwork(const NetworkOptions& options) : network(options) {}
  Network network;
  std::atomic_flag is_in_use;
};

using Held = c10::intrusive_ptr<HeldNetwork>;
using Strings = c10::List<std::string>;
using Lists = c10::List<at::Tensor>;

// Guards a network against use by two threads, because operators run without Python's GIL.
class Use {
 public:
  explicit Use(const Held& held) : flag_(held->is_in_use) {
    TORCH_CHECK(!flag_.test_and_set(), "Network: another thread is using this network: one at a time can");
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { flag_.clear(); }

 private:
  std::atomic_flag& flag_;
};

// Wraps an operator's kernel for use by one thread at a time.
template <auto> struct Alone;
template <class Result, class... Args, Result (*kernel)(const Held&, Args...)> struct Alone<kernel> {
  static Result call(const Held& held, Args... args) {
    const Use use(held);
    const Undifferentiated mode;
    return kernel(held, std::forward<Args>(args)...);
  }
};

// `group` is the name of a process group in torch.distributed, or empty.
Held network(std::int64_t seed, at::ScalarType dtype, at::ScalarType weight_dtype, c10::Device device,
             bool deterministic, const std::string& group, std::int64_t copies, std::vector<std::int64_t> noise_seeds) {
  std::shared_ptr<Ranks> ranks = group.empty() ? nullptr : ranks_of_name(group);
  return c10::make_intrusive<HeldNetwork>(NetworkOptions{seed, dtype, weight_dtype, device, deterministic,
                                                         std::move(ranks), copies, std::move(noise_seeds)});
}

NamedNumbers named(const Strings& names, const Lists& numbers) {
  NamedNumbers all;
  for (std::size_t i = 0; i < names.size(); ++i) all.emplace(names.get(i), numbers.get(i));
  return all;
}

void populate(const Held& held, const std::string& name, std::int64_t size, std::string neuron,
              const Strings& param_names, const Lists& params, const Strings& state_names, const Lists& states,
              const std::string& area) {
  held->network.populate(name, size, Neuron(std::move(neuron)), named(param_names, params), named(state_names, states),
                         area);
}

Population population(const Held& held, std::int64_t number) {
  return held->network.populations().at(static_cast<std::size_t>(number));
}

// The arguments are as for the operator connect: values and laws of weights, then of delays. Returns the index of the
// plastic projection if a rule is given, else -1.
std::int64_t project(const Held& held, std::int64_t sources, std::int64_t targets, const std::string& rule,
                     double amount, const c10::List<bool>& choices, const Strings& laws, c10::ArrayRef<double> numbers,
                     const Lists& arrays, const std::string& into, const std::string& plasticity,
                     const Strings& param_names, c10::ArrayRef<double> params) {
  const std::string law_names[] = {laws.get(0), laws.get(1)};
  const auto law = [&](std::size_t which) -> NumberLaw {
    const double* const n = numbers.slice(4 * which, 4).data();
    return {law_names[which], n[0], n[1], n[2], n[3], choices.get(2 + which)};
  };
  Projection how{.rule = rule,
                 .sources = {},
                 .targets = {},
                 .amount = amount,
                 .autapses = choices.get(0),
                 .multapses = choices.get(1),
                 .weight = law(0),
                 .delay = law(1)};
  std::size_t next = 0;
  if (rule == "arrays") {
    how.source_indices = arrays.get(next++);
    how.target_indices = arrays.get(next++);
    if (law_names[0] == "array") how.weights = arrays.get(next++);
    if (law_names[1] == "array") how.delays = arrays.get(next++);
  }
  const Population from = population(held, sources), to = population(held, targets);
  if (plasticity.empty()) {
    held->network.project(from, to, how, into);
    return -1;
  }
  Plasticity learns{.rule = plasticity};
  for (std::size_t i = 0; i < param_names.size(); ++i) learns.params.emplace(param_names.get(i), params.at(i));
  return static_cast<std::int64_t>(held->network.project(from, to, how, learns, into));
}

// Returns copies, except of states and traces.
std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>> learned(
    const Held& held, std::int64_t projection, std::int64_t copy) {
  const Learned now = held->network.learned(static_cast<std::size_t>(projection), copy);
  std::vector<at::Tensor> states, traces;
  for (const auto& [name, state] : now.states) states.push_back(state.detach());
  for (const auto& [name, trace] : now.traces) traces.push_back(trace.clone());
  return {now.matrix.indices.clone(), now.matrix.indptr.clone(), now.matrix.delays.clone(), std::move(states),
          std::move(traces)};
}

void modulate(const Held& held, const Strings& signals, const Lists& values) {
  held->network.modulate(named(signals, values));
}

// Returns the contents of a synapse text: its name; names of states, traces, parameters and signals; initial values of
// states and traces; which traces belong to postsynaptic neurons; true if a state decays; true if there is an "on
// post"; and the text as the library prints it.
std::tuple<std::string, std::vector<std::string>, std::vector<std::string>, std::vector<std::string>,
           std::vector<std::string>, std::vector<double>, std::vector<double>, std::vector<std::int64_t>, bool, bool,
           std::string>
read_synapse(const std::string& text) {
  const std::shared_ptr<const ops::plastic::Rule> rule = ops::plastic::rule_of(text, "synapse");
  const graph::Synapse& s = rule->synapse;
  std::vector<std::string> states, traces;
  std::vector<double> of_states, of_traces;
  std::vector<std::int64_t> after;
  for (const graph::State& state : s.states) {
    states.push_back(state.name);
    of_states.push_back(state.initial);
  }
  for (const graph::Trace& trace : s.traces) {
    traces.push_back(trace.name);
    of_traces.push_back(trace.initial);
    after.push_back(trace.after ? 1 : 0);
  }
  return {s.name,    states, traces,           s.params,           s.signals,      of_states,
          of_traces, after,  s.states_decay(), s.post.has_value(), graph::print(s)};
}

std::tuple<double, double> weight_bounds(const std::string& rule, at::ArrayRef<double> params) {
  return ops::plastic::weight_bounds(ops::plastic::rule_of(rule, "Plastic")->synapse, params);
}

std::int64_t drive(const Held& held, std::int64_t targets, const at::Tensor& rate, const at::Tensor& weight,
                   const std::string& into) {
  return static_cast<std::int64_t>(held->network.drive(population(held, targets), rate, {weight, into}));
}

void set_drive(const Held& held, std::int64_t number, const at::Tensor& rate) {
  held->network.set_drive(static_cast<std::size_t>(number), rate);
}

std::int64_t inject(const Held& held, std::int64_t targets, const at::Tensor& current, const std::string& into) {
  return static_cast<std::int64_t>(held->network.inject(population(held, targets), current, into));
}

void set_current(const Held& held, std::int64_t number, const at::Tensor& current) {
  held->network.set_current(static_cast<std::size_t>(number), current);
}

bool is_built(const Held& held) { return held->network.is_built(); }

at::Tensor state_of(const Held& held, std::int64_t of, const std::string& name) {
  return held->network.state(population(held, of), name).detach();
}

at::Tensor param_of(const Held& held, std::int64_t of, const std::string& name) {
  return held->network.param(population(held, of), name);
}

void set_param(const Held& held, std::int64_t of, const std::string& name, const at::Tensor& value) {
  held->network.set_param(population(held, of), name, value);
}

void silence(const Held& held, std::int64_t of, const at::Tensor& neurons, bool silent,
             std::optional<std::int64_t> copy) {
  held->network.silence(population(held, of), neurons, silent, copy);
}

// Returns copies, except of the weights, which share memory with those that the steps read.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> build(const Held& held) {
  const Connectivity& matrix = held->network.build();
  return {matrix.indices.clone(), matrix.indptr.clone(), matrix.weights.detach(), matrix.delays.clone()};
}

// The same for a network with ranks or areas, as copies with the indices of the whole network.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> connectivity(const Held& held) {
  Connectivity matrix = held->network.connectivity();
  return {std::move(matrix.indices), std::move(matrix.indptr), std::move(matrix.weights), std::move(matrix.delays)};
}

// The number of connections on all ranks.
std::int64_t connections(const Held& held) {
  Running& running = held->network.running();
  std::int64_t all = 0;
  for (const Numbers& rank : running.guard().gather_notices(
           Topic::connections, [&] { return Numbers{running.state().matrix.indices.numel()}; }))
    all += rank[0];
  return all;
}

// Returns the numbers of own neurons and connections, the steps of a block, and the number and cost of exchanges so
// far.
std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double> share(const Held& held) {
  CallGuard& guard = held->network.running().guard();
  const NetworkState& state = held->network.running().state();
  const ExchangeCost cost = guard.is_shared() ? guard.exchange().cost() : ExchangeCost();
  return {state.size, state.matrix.indices.numel(), state.block, cost.exchanges, cost.bytes, cost.seconds};
}

std::tuple<at::Tensor, at::Tensor> gather(const Held& held, const at::Tensor& steps, const at::Tensor& neurons,
                                          std::int64_t first_step, std::int64_t step_count) {
  Recording all = gathered(held->network, {steps, neurons, {}, first_step, step_count});
  return {std::move(all.steps), std::move(all.neurons)};
}

std::vector<at::Tensor> state(const Held& held) { return held->network.state(); }

void load_state(const Held& held, const Lists& tensors) { held->network.load_state(tensors.vec()); }

std::vector<StateProbe> probes(const Held& held, c10::IntArrayRef populations, const Strings& states,
                               const Lists& neurons) {
  std::vector<StateProbe> requested;
  for (std::size_t i = 0; i < populations.size(); ++i) {
    const at::Tensor& given = neurons.get(i);
    const Population of = population(held, populations[i]);
    TORCH_CHECK_TYPE(at::isIntegralType(given.scalar_type(), /*includeBool=*/false), "simulate: neurons of ", of.name,
                     " must be whole numbers, those of the neurons, but are ", given.scalar_type(),
                     given.scalar_type() == at::kBool ? "; of a mask pass mask.nonzero().flatten()" : "");
    const at::Tensor numbers = given.to(c10::kCPU, at::kLong).contiguous();
    TORCH_CHECK_VALUE(numbers.dim() == 1, "simulate: neurons of ", of.name, " must be numbers from 0 to ",
                      of.size() - 1, ", but have shape ", numbers.sizes());
    const auto* const begin = numbers.const_data_ptr<std::int64_t>();
    requested.push_back({of, states.get(i), {begin, begin + numbers.numel()}});
  }
  return requested;
}

// `tensors` has the values of each input, followed by as many tensors as `index_counts` says: none; the neurons; or the
// steps, neurons and copies of events, where copies without elements are all copies.
std::vector<StepInput> inputs(const Held& held, c10::IntArrayRef populations, const Strings& into,
                              c10::IntArrayRef index_counts, const Lists& tensors) {
  std::vector<StepInput> all;
  std::size_t next = 0;
  for (std::size_t i = 0; i < populations.size(); ++i) {
    StepInput& input = all.emplace_back(StepInput{population(held, populations[i]), into.get(i), tensors.get(next++)});
    if (index_counts[i] > 1) input.steps = tensors.get(next++);
    if (index_counts[i] > 0) input.neurons = tensors.get(next++);
    if (index_counts[i] < 3) continue;
    const at::Tensor& copies = tensors.get(next++);
    if (copies.numel() > 0) input.copies = copies;
  }
  return all;
}

// Prepares steps that several calls run: builds the network, and checks that all ranks run them. Returns the number of
// steps so far, and memory for the states of all steps.
std::tuple<std::int64_t, std::vector<at::Tensor>> begin(const Held& held, std::int64_t steps, bool /*spikes*/,
                                                        c10::IntArrayRef populations, const Strings& states,
                                                        const Lists& neurons) {
  Running& running = held->network.running();
  RecordedStates recorded = running.begin(steps, probes(held, populations, states, neurons), /*own=*/false);
  for (at::Tensor& state : recorded.whole) state = running.state().by_copies(state);
  return {running.state().steps(), std::move(recorded.whole)};
}

// Returns the steps and neurons of spikes, the recorded states, the number of steps before the call, and the copies of
// spikes (no elements if there is one copy). If `into` is given, states are written there.
std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>, std::int64_t, at::Tensor> simulate(
    const Held& held, std::int64_t steps, bool spikes, c10::IntArrayRef populations, const Strings& states,
    const Lists& neurons, c10::IntArrayRef input_populations, const Strings& input_names, c10::IntArrayRef index_counts,
    const Lists& input_tensors, const std::optional<Lists>& into) {
  std::optional<std::vector<at::Tensor>> rows;
  if (into) rows = into->vec();
  const bool has_copies = held->network.options().copies > 1;
  for (std::size_t i = 0; has_copies && rows && i < rows->size(); ++i) (*rows)[i] = (*rows)[i].flatten(1);
  Recording recording =
      held->network.running().simulate(steps,
                                       {spikes, probes(held, populations, states, neurons),
                                        inputs(held, input_populations, input_names, index_counts, input_tensors)},
                                       std::move(rows));
  if (into) recording.states.clear();
  if (!has_copies) recording.copies = recording.steps.new_empty({0});
  return {std::move(recording.steps), std::move(recording.neurons), std::move(recording.states), recording.first_step,
          std::move(recording.copies)};
}

// Returns the spikes of all neurons, bool [steps, neurons].
at::Tensor step(const Held& held, std::int64_t steps, Numbers input_populations, const Strings& input_names,
                Numbers index_counts, const Lists& input_tensors) {
  return held->network.step(steps, inputs(held, input_populations, input_names, index_counts, input_tensors));
}

// For tests.
void uses_operators(const Held& held, bool uses) { held->network.running().set_uses_operators(uses); }

template <auto kernel> void define(torch::Library& library, const char* name, const std::string& rest) {
  const std::string held = "__torch__.torch.classes.spikeforge_simulation.Network network";
  library.def((name + ("(" + held + rest)).c_str(), TORCH_FN(Alone<kernel>::call));
}

SPIKEFORGE_REGISTERED(TORCH_LIBRARY_FRAGMENT(spikeforge_simulation, given), torch::Library& library, C10_UID) {
  // step is a method, not an operator: of an operator's arguments, PyTorch looks up __torch_function__, which takes 20
  // microseconds for a TorchScript object.
  library.class_<HeldNetwork>("Network").def("step", Alone<step>::call);
  library.def(
      "network(int seed, ScalarType dtype, ScalarType weight_dtype, Device device, bool deterministic, str group, "
      "int copies=1, int[] noise_seeds=[]) -> __torch__.torch.classes.spikeforge_simulation.Network",
      TORCH_FN(network));
  define<populate>(
      library, "populate",
      ", str name, int size, str neuron, str[] param_names, Tensor[] params, str[] state_names, Tensor[] states, "
      "str area) -> ()");
  define<project>(
      library, "project",
      ", int sources, int targets, str rule, float amount, bool[] choices, str[] laws, float[] numbers, Tensor[] "
      "arrays, str into, str plasticity, str[] param_names, float[] params) -> int");
  define<learned>(library, "learned",
                  ", int projection, int copy=0) -> (Tensor indices, Tensor indptr, Tensor delays, Tensor[] states, "
                  "Tensor[] traces)");
  define<modulate>(library, "modulate", ", str[] signals, Tensor[] values) -> ()");
  library.def("read_synapse(str text) -> (str, str[], str[], str[], str[], float[], float[], int[], bool, bool, str)",
              TORCH_FN(read_synapse));
  library.def("weight_bounds(str rule, float[] params) -> (float, float)", TORCH_FN(weight_bounds));
  library.def("in_large_pages(Tensor t) -> Tensor", TORCH_FN(in_large_pages));
  define<drive>(library, "drive", ", int targets, Tensor rate, Tensor weight, str into) -> int");
  define<set_drive>(library, "set_drive", ", int drive, Tensor rate) -> ()");
  define<inject>(library, "inject", ", int targets, Tensor current, str into) -> int");
  define<set_current>(library, "set_current", ", int current, Tensor value) -> ()");
  define<is_built>(library, "is_built", ") -> bool");
  define<state_of>(library, "state_of", ", int population, str name) -> Tensor");
  define<param_of>(library, "param_of", ", int population, str name) -> Tensor");
  define<set_param>(library, "set_param", ", int population, str name, Tensor value) -> ()");
  define<silence>(library, "silence", ", int population, Tensor neurons, bool silent, int? copy=None) -> ()");
  define<build>(library, "build", ") -> (Tensor indices, Tensor indptr, Tensor weights, Tensor delays)");
  define<connectivity>(library, "connectivity", ") -> (Tensor indices, Tensor indptr, Tensor weights, Tensor delays)");
  define<share>(library, "share", ") -> (int, int, int, int, int, float)");
  define<gather>(library, "gather",
                 ", Tensor steps, Tensor neurons, int first_step, int step_count) -> (Tensor steps, Tensor neurons)");
  define<state>(library, "state", ") -> Tensor[]");
  define<load_state>(library, "load_state", ", Tensor[] tensors) -> ()");
  define<connections>(library, "connections", ") -> int");
  const std::string recorded = ", int steps, bool spikes, int[] populations, str[] states, Tensor[] neurons";
  define<begin>(library, "begin", recorded + ") -> (int first_step, Tensor[] states)");
  define<simulate>(library, "simulate",
                   recorded +
                       ", int[] input_populations, str[] input_names, int[] index_counts, Tensor[] input_tensors, "
                       "Tensor(a!)[]? into=None) -> (Tensor steps, Tensor neurons, Tensor[] states, int first_step, "
                       "Tensor copies)");
  define<uses_operators>(library, "uses_operators", ", bool uses) -> ()");
}

}  // namespace
}  // namespace spikeforge::simulation
