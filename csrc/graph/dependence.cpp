#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/copy.h"

namespace spikeforge::graph {

Dependence::Dependence(const Graph& graph) : bits_(graph.size()) {
  for (Id id = 0; id < graph.size(); ++id) {
    bits_[id].resize(graph.argument_count());
    if (graph.is(id, Op::argument)) bits_[id][id] = true;
    for (const Id operand : graph.operands(id))
      for (std::size_t i = 0; i < graph.argument_count(); ++i)
        if (bits_[operand][i]) bits_[id][i] = true;
  }
}

bool draws(const Graph& graph) {
  const std::vector<bool> live = live_nodes(graph);
  for (Id id = 0; id < graph.size(); ++id)
    if (live[id] && is_draw(graph[id].op)) return true;
  return false;
}

namespace {

template <class Predicate> std::vector<bool> dependent(const Graph& graph, Predicate&& is_source) {
  std::vector<bool> depends(graph.size());
  for (Id id = 0; id < graph.size(); ++id) {
    depends[id] = is_source(graph[id]);
    for (const Id operand : graph.operands(id)) depends[id] = depends[id] || depends[operand];
  }
  return depends;
}

}  // namespace

std::vector<bool> drawn(const Graph& graph) {
  return dependent(graph, [](const Node& node) { return is_draw(node.op); });
}

std::vector<bool> drawn_anew(const Graph& graph) {
  return dependent(graph, [](const Node& node) { return is_draw(node.op) && !node.draw.once; });
}

bool Dependence::beyond(Id node, std::size_t first, std::size_t count) const {
  for (std::size_t i = 0; i < bits_[node].size(); ++i)
    if (bits_[node][i] && (i < first || i >= first + count)) return true;
  return false;
}

}  // namespace spikeforge::graph
