#include <spikeforge/graph/errors.h>
#include <spikeforge/graph/internal/copy.h>
#include <spikeforge/graph/trace.h>

#include <fmt/format.h>

namespace spikeforge::graph {
namespace {

// Nodes in the order in which the results need them, operands from the left. C++ leaves open which operand of a + b is
// evaluated first; the text of a neuron, and whatever is kept under it, must not depend on the compiler's choice.
std::vector<Id> order_of_need(const Graph& graph) {
  std::vector<Id> order;
  std::vector<bool> seen(graph.size()), placed(graph.size());
  for (const Id result : graph.results()) {
    std::vector<Id> pending = {result};
    while (!pending.empty()) {
      const Id id = pending.back();
      if (!seen[id]) {
        seen[id] = true;
        const std::span<const Id> operands = graph.operands(id);
        for (auto operand = operands.rbegin(); operand != operands.rend(); ++operand)
          if (!placed[*operand]) pending.push_back(*operand);
        continue;
      }
      pending.pop_back();
      if (!placed[id]) order.push_back(id);
      placed[id] = true;
    }
  }
  return order;
}

// A draw, numbered in this order too.
Id numbered(Graph& to, const Graph& from, Id id, std::span<const Id> copies, std::uint32_t& next) {
  Node node = from[id];
  node.draw.number = next;
  next += info(node.op).words;
  std::vector<Id> operands;
  for (const Id operand : from.operands(id)) operands.push_back(copies[operand]);
  return to.like(node, operands);
}

Cell in_order_of_need(const Cell& cell) {
  const Graph& graph = cell.graph();
  Cell ordered(cell.signature());
  std::vector<Id> copies(graph.size());
  for (Id id = 0; id < graph.argument_count(); ++id) copies[id] = id;
  std::uint32_t draws = 0;
  for (const Id id : order_of_need(graph)) {
    if (graph.is(id, Op::argument)) continue;
    copies[id] = is_draw(graph[id].op) ? numbered(ordered.graph(), graph, id, copies, draws)
                                       : copy_node(ordered.graph(), graph, id, copies);
  }
  std::vector<Id> results;
  for (const Id result : graph.results()) results.push_back(copies[result]);
  ordered.finish(std::span(results).first(cell.output_count()), std::span(results).last(cell.state_count()));
  return ordered;
}

}  // namespace

Cell trace(Signature signature, const std::function<Step(Values, Values, Values)>& body) {
  const std::string name = signature.name;
  try {
    Cell cell(std::move(signature));
    const Recording recording(cell.graph());
    std::vector<Value> arguments;
    for (Id id = 0; id < cell.graph().argument_count(); ++id) arguments.push_back(recording.value(id));
    const Values all = arguments;
    const Step returned = body(all.first(cell.input_count()), all.subspan(cell.input_count(), cell.state_count()),
                               all.last(cell.param_count()));
    const auto ids = [&](const std::vector<Value>& values) {
      std::vector<Id> list;
      list.reserve(values.size());
      for (const Value& value : values) list.push_back(recording.id(value, "step"));
      return list;
    };
    cell.finish(ids(returned.outputs), ids(returned.next_states));
    return in_order_of_need(cell);
  } catch (const GraphError& error) {
    throw GraphError(fmt::format("neuron {}: {}", name, error.what()));
  }
}

namespace detail {

void throw_wrong_arity(const Signature& signature, int arity) {
  throw GraphError(fmt::format(
      "neuron {}: the lambda takes {} value{}, but {} are named ({}): it takes one for each input, state and parameter",
      signature.name, arity, arity == 1 ? "" : "s",
      signature.inputs.size() + signature.states.size() + signature.params.size(), text_of(signature)));
}

std::vector<std::string> numbered(const char* letter, std::size_t count) {
  std::vector<std::string> names;
  // One more than is legal will be refused.
  for (std::size_t i = 0; i < count && i <= most_arguments; ++i) names.push_back(fmt::format("{}{}", letter, i));
  return names;
}

}  // namespace detail
}  // namespace spikeforge::graph
