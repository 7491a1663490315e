#include "csrc/graph/internal/lower.h"
#include "csrc/graph/internal/copy.h"

namespace spikeforge::graph {
namespace {

Id lower_node(Graph& to, const Node& node, std::span<const Id> x) {
  switch (node.op) {
    case Op::spike:
    case Op::spike_strict: {
      const Op above = node.op == Op::spike ? Op::greater_equal : Op::greater;
      return to.make(Op::where, {to.make(above, {x[0], to.constant(0)}), to.constant(1), to.constant(0)});
    }
    case Op::select: return to.make(Op::where, {fires(to, x[0]), x[1], x[2]});
    case Op::detach:
    case Op::add_gradient: return x[0];
    default: return to.like(node, x);
  }
}

}  // namespace

Id fires(Graph& graph, Id s) {
  if (graph.is(s, Op::where) && graph.is_constant(graph.operands(s)[1], 1) &&
      graph.is_constant(graph.operands(s)[2], 0))
    return graph.operands(s)[0];
  return graph.make(Op::equal, {s, graph.constant(1)});
}

std::vector<Id> lower_into(Graph& to, const Graph& from) {
  std::vector<Id> lowered(from.size());
  for (Id id = 0; id < from.size(); ++id) {
    if (from.is(id, Op::argument)) {
      lowered[id] = id;
      continue;
    }
    std::vector<Id> operands;
    for (const Id operand : from.operands(id)) operands.push_back(lowered[operand]);
    lowered[id] = lower_node(to, from[id], operands);
    if (!from.name(id).empty()) to.set_name(lowered[id], from.name(id));
  }
  return lowered;
}

Graph lowered(const Graph& graph) {
  Graph plain;
  for (Id id = 0; id < graph.argument_count(); ++id) plain.argument(graph.name(id));
  const std::vector<Id> nodes = lower_into(plain, graph);
  for (const Id result : graph.results()) plain.add_result(nodes[result]);
  return compacted(plain);
}

Graph lowered(const SynapseBlock& block, bool of_traces, bool sends) {
  const std::span<const Id> results = block.graph.results();
  const auto changed =
      of_traces ? results.subspan(block.states.size(), block.traces.size()) : results.first(block.states.size());
  std::vector<Id> wanted(changed.begin(), changed.end());
  if (sends) wanted.push_back(results.back());
  return lowered(restricted(block.graph, block.graph.argument_count(), wanted));
}

}  // namespace spikeforge::graph
