#include "csrc/simulation/internal/spike_output.h"
#include "csrc/graph/internal/evaluate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

namespace spikeforge::simulation {
namespace {

constexpr std::size_t most_levels = 16;

// The possible values of a node of the graph.
struct Known {
  std::vector<double> levels;           // all values that it may have; empty: unknown, and only then the others apply
  bool is_continuous = false;           // it depends on an input or a random number, other than through levels
  bool has_state = false;               // the same for a state
  bool is_mixed = false;                // arithmetic combines both
  const std::string* graded = nullptr;  // it depends on a state with this name, whose next value is mixed
};

// Returns the levels of a node whose operands have levels, or an empty vector if there are too many.
std::vector<double> levels_of(const graph::Graph& graph, graph::Id id, const std::vector<Known>& known) {
  std::vector<std::vector<double>> arguments{{}};
  for (const graph::Id operand : graph.operands(id)) {
    std::vector<std::vector<double>> longer;
    for (const std::vector<double>& begun : arguments)
      for (const double level : known[operand].levels) longer.emplace_back(begun).push_back(level);
    if (longer.size() > most_levels) return {};
    arguments = std::move(longer);
  }
  std::vector<double> levels;
  for (const std::vector<double>& operands : arguments) {
    const double level = graph::evaluate_node<double>(graph[id], operands);
    if (std::ranges::find(levels, level) == levels.end()) levels.push_back(level);
  }
  return levels;
}

Known known_of(const graph::Graph& graph, graph::Id id, const std::vector<Known>& known) {
  const auto operands = graph.operands(id);
  const auto is_zero = [&](graph::Id operand) { return graph.is_constant(operand, 0); };
  const auto has_levels = [&](graph::Id operand) { return !known[operand].levels.empty(); };
  const graph::Op op = graph[id].op;
  switch (op) {
    case graph::Op::constant:
    case graph::Op::truth: return {.levels = {graph[id].number}};
    case graph::Op::spike:
    case graph::Op::spike_strict:
    case graph::Op::bernoulli: return {.levels = {0, 1}};
    case graph::Op::sign: return {.levels = {-1, 0, 1}};
    case graph::Op::normal:
    case graph::Op::uniform: return {.levels = {}, .is_continuous = true};
    case graph::Op::poisson:
    case graph::Op::floor:
    case graph::Op::ceil:
    case graph::Op::round:
    case graph::Op::trunc: return {};
    default: break;
  }
  if (op == graph::Op::multiply && std::ranges::any_of(operands, is_zero)) return {.levels = {0}};
  if (std::ranges::all_of(operands, has_levels)) return {.levels = levels_of(graph, id, known)};
  if (graph.kind(id) == graph::Kind::boolean) return {.levels = {0, 1}};
  Known all;
  for (const graph::Id operand : operands) {
    const Known& one = known[operand];
    all.is_continuous |= one.is_continuous;
    all.has_state |= one.has_state;
    all.is_mixed |= one.is_mixed;
    if (all.graded == nullptr) all.graded = one.graded;
  }
  const bool selects = op == graph::Op::where || op == graph::Op::select;
  all.is_mixed |= !selects && all.is_continuous && all.has_state;
  return all;
}

// Returns what is known about the first output. Knowledge about states is that of all steps: it decreases with each
// step until it stays the same.
Known known_output(const graph::Cell& cell) {
  const graph::Graph& graph = cell.graph();
  std::vector<Known> known(graph.size());
  for (std::size_t i = 0; i < cell.input_count(); ++i) known[cell.input(i)].is_continuous = true;
  for (std::size_t i = 0; i < cell.state_count(); ++i) known[cell.state(i)].has_state = true;
  for (bool changes = true; changes;) {
    for (graph::Id id = static_cast<graph::Id>(graph.argument_count()); id < graph.size(); ++id)
      known[id] = known_of(graph, id, known);
    changes = false;
    for (std::size_t i = 0; i < cell.state_count(); ++i) {
      Known& state = known[cell.state(i)];
      const Known& next = known[cell.next_state(i)];
      const bool is_graded = next.is_mixed || next.graded != nullptr;
      changes |= (next.is_continuous && !state.is_continuous) || (is_graded && state.graded == nullptr);
      state.is_continuous |= next.is_continuous;
      if (is_graded) state.graded = &cell.signature().states[i].name;
    }
  }
  return known[cell.output(0)];
}

}  // namespace

void check_spike_output(const std::string& population, const graph::Cell& cell) {
  const Known output = known_output(cell);
  TORCH_CHECK_VALUE(output.graded == nullptr, "Network: the first output of the neuron of ", population,
                    " must be a spike, but is a graded function of the state ", *output.graded,
                    ": return spike(...) or where(condition, 1, 0) first");
  const auto other = std::ranges::find_if(output.levels, [](double level) { return level > 0 && level != 1; });
  TORCH_CHECK_VALUE(other == output.levels.end(), "Network: the first output of the neuron of ", population,
                    " must be a spike, 0 or 1, but may be ", *other,
                    ": all spikes are equal; scale the weights instead");
}

}  // namespace spikeforge::simulation
