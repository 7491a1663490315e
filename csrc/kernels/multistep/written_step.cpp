#include "csrc/kernels/multistep/written_step.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/surrogate_values.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/neuron/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace spikeforge {
namespace {

using graph::Value;

Value reset(const Value& h, const Value& s, const Value& threshold, const Value& v_reset, const CellForm& form) {
  const Value by = form.detach_reset ? detach(s) : s;
  if (!form.hard_reset) return h - by * threshold;
  return form.spiking ? select(by, v_reset, h) : by * v_reset + (1 - by) * h;
}

// Names the values of a step for readers. A named value is a statement of the text, and determines the order of the
// sums in its derivatives.
class Names {
 public:
  explicit Names(bool on) : on_(on), graph_(graph::Recording::current("a neuron's step").graph()) {}

  void name(const Value& value, std::string_view name) const {
    if (on_) graph_.set_name(graph::Recording::current(name).id(value, name), name);
  }

  // Names the values that depend only on parameters, the nodes from `first` on: inv_tau for a leaky neuron, and
  // reciprocals after their parameter.
  void name_rates(std::size_t first, bool leaky) const {
    for (auto id = static_cast<graph::Id>(first); on_ && id < graph_.size(); ++id) {
      if (graph_.is(id, graph::Op::constant)) continue;
      if (leaky)
        graph_.set_name(id, "inv_tau");
      else if (graph_.is(graph_.operands(id)[1], graph::Op::argument))
        graph_.set_name(id, "inv_" + graph_.name(graph_.operands(id)[1]));
    }
  }

  std::size_t next() const { return graph_.size(); }

 private:
  bool on_;
  graph::Graph& graph_;
};

// Records a step, in which fire(u) returns the spike.
template <class Fire>
WrittenStep written_step(NeuronKind kind, const CellForm& form, const Fire& fire, graph::Values params, const Value& x,
                         graph::Values states, bool with_names) {
  return with_kind(kind, [&]<NeuronKind each>() {
    using Neuron = typename NeuronStruct<each>::template type<Value, CellForm>;
    const Names names(with_names);
    const std::size_t first = names.next();
    const Neuron neuron(params.data(), form);
    names.name_rates(first, has_decay_input(kind));
    const Value h = neuron.charge(x, states.data());
    names.name(h, "h");
    Value threshold = params[Neuron::v_threshold];
    if constexpr (Neuron::adapts) {
      threshold = neuron.threshold(threshold, states.data());
      names.name(threshold, "threshold");
    }
    const Value u = h - threshold;
    names.name(u, "u");
    const Value s = fire(u);
    names.name(s, "s");
    WrittenStep step{s, {reset(h, s, threshold, params[Neuron::v_reset], form)}};
    if constexpr (Neuron::n_states == 2) step.next_states.push_back(neuron.recover(h, s, states[1]));
    return step;
  });
}

const PredefinedCell& cell_of_name(const std::string& name) {
  for (const NeuronKind kind : all_neurons)
    if (predefined_cell(kind).name == name) return predefined_cell(kind);
  throw graph::GraphError(fmt::format("no neuron is called {}", name));
}

// Replaces products with a reciprocal by quotients, which are rounded once.
graph::Graph with_divisions(const graph::Graph& graph) {
  graph::Graph copy;
  std::vector<graph::Id> copies(graph.size());
  const auto is_reciprocal = [&](graph::Id id) {
    return graph.is(id, graph::Op::divide) && graph.is_constant(graph.operands(id)[0], 1);
  };
  for (graph::Id id = 0; id < graph.size(); ++id) {
    if (graph.is(id, graph::Op::argument)) {
      copies[id] = copy.argument(graph.name(id));
      continue;
    }
    if (graph.is(id, graph::Op::multiply)) {
      const auto operands = graph.operands(id);
      const std::size_t i = is_reciprocal(operands[0]) ? 0 : 1;
      if (is_reciprocal(operands[i])) {
        const graph::Id divisor = graph.operands(operands[i])[1];
        copies[id] = copy.make(graph::Op::divide, {copies[operands[1 - i]], copies[divisor]});
        continue;
      }
    }
    copies[id] = graph::copy_node(copy, graph, id, copies);
  }
  for (const graph::Id result : graph.results()) copy.add_result(copies[result]);
  return copy;
}

// The constants of a description by name.
class Constants {
 public:
  explicit Constants(const NeuronDescription& described) : described_(described) {}

  bool has(std::string_view name) const { return number(name) || param(name) >= 0; }

  std::optional<double> number(std::string_view name) const {
    for (const auto& [known, number] : described_.numbers)
      if (known == name) return number;
    return std::nullopt;
  }

  Value value(std::string_view name, graph::Values params) const {
    if (const std::ptrdiff_t place = param(name); place >= 0) return params[static_cast<std::size_t>(place)];
    if (const auto found = number(name)) return *found;
    throw graph::GraphError(fmt::format("its constant {} is missing", name));
  }

 private:
  std::ptrdiff_t param(std::string_view name) const {
    const auto found = std::ranges::find(described_.params, name);
    return found == described_.params.end() ? -1 : found - described_.params.begin();
  }

  const NeuronDescription& described_;
};

}  // namespace

WrittenStep written_step(NeuronKind kind, const CellForm& form, const graph::Surrogate& surrogate, graph::Values params,
                         const Value& x, graph::Values states) {
  const auto fire = [&](const Value& u) {
    return form.spiking ? spike(u, surrogate) : graph::surrogate_primitive(u, surrogate);
  };
  return written_step(kind, form, fire, params, x, states, /*with_names=*/false);
}

std::vector<InitialState> initial_states(NeuronKind kind, bool hard_reset) {
  return with_kind(kind, [&]<NeuronKind each>() {
    using Neuron = typename NeuronStruct<each>::template type<Value, CellForm>;
    std::vector<InitialState> initial(Neuron::n_states);
    if (hard_reset) initial[0].param = Neuron::v_reset;
    if constexpr (Neuron::n_states == 2) {
      graph::Graph graph;
      std::vector<Value> params;
      params.reserve(Neuron::n_params);
      for (int j = 0; j < Neuron::n_params; ++j) graph.argument(fmt::format("p{}", j));
      const graph::Recording recording(graph);
      for (int j = 0; j < Neuron::n_params; ++j) params.push_back(recording.value(static_cast<graph::Id>(j)));
      const graph::Id start = recording.id(Neuron::initial_recovery(params.data()), "initial_states");
      if (graph.is(start, graph::Op::argument))
        initial[1].param = static_cast<int>(start);
      else
        initial[1].number = graph[start].number;
    }
    return initial;
  });
}

graph::Cell trace_neuron(const NeuronDescription& described) {
  const bool is_cuba = described.neuron == "cuba_lif";  // a LIF whose input is the synaptic current
  const PredefinedCell& neuron = cell_of_name(is_cuba ? "lif" : described.neuron);
  const auto name_of = [&](const CellParam& param) {
    return is_cuba && param.name == "tau" ? "tau_membrane" : param.name;
  };
  const Constants constants(described);
  const CellForm form{.hard_reset = constants.has("v_reset"),
                      .detach_reset = described.detach_reset,
                      .decay_input = described.decay_input};
  const std::vector<InitialState> initial = initial_states(neuron.kind, form.hard_reset);

  graph::Signature signature{described.name, {"x"}, {}, described.params};
  std::vector<bool> only_starts(neuron.params.size());  // constants that no step reads
  for (std::size_t s = 0; s < initial.size(); ++s) {
    const int param = initial[s].param;
    if (param >= 0) only_starts[static_cast<std::size_t>(param)] = s > 0;
    signature.states.emplace_back(
        neuron.states[s], param < 0
                              ? initial[s].number
                              : constants.number(name_of(neuron.params[static_cast<std::size_t>(param)])).value_or(0));
  }
  if (is_cuba) signature.states.emplace_back("i");

  const graph::Cell fired = graph::parse(fmt::format("neuron spike(u) {{ return {} }}", described.spike));
  const auto fire = [&](const Value& u) {
    const graph::Recording& recording = graph::Recording::current("spike");
    const graph::Id at = recording.id(u, "spike"), result = fired.output(0);
    return recording.value(graph::copy_into(recording.graph(), fired.graph(), {&at, 1}, {&result, 1})[0]);
  };
  graph::Cell cell = graph::trace(signature, [&](graph::Values inputs, graph::Values states, graph::Values params) {
    std::vector<Value> values;
    for (std::size_t j = 0; j < neuron.params.size(); ++j) {
      const std::string name = name_of(neuron.params[j]);
      const bool is_unread = only_starts[j] || (name == "v_reset" && !form.hard_reset);
      values.push_back(is_unread ? Value(0.0) : constants.value(name, params));
    }
    Value x = inputs[0];
    if (is_cuba) {
      x = states[1] - 1 / constants.value("tau_synapse", params) * states[1] + x;
      Names(true).name(x, "current");
    }
    WrittenStep step = written_step(neuron.kind, form, fire, values, x, states, /*with_names=*/true);
    if (is_cuba) step.next_states.push_back(x);
    return graph::Step{{step.spike}, std::move(step.next_states)};
  });
  if (described.divides) cell.graph() = with_divisions(cell.graph());
  return cell;
}

}  // namespace spikeforge
