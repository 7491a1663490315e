#include "csrc/graph/internal/multiply_adds.h"

namespace spikeforge::graph {
namespace {

// For each node, true if a condition depends on it.
std::vector<bool> deciding_nodes(const Graph& graph) {
  std::vector<bool> deciding(graph.size());
  for (Id id = static_cast<Id>(graph.size()); id-- > 0;)
    if (deciding[id] || graph.kind(id) == Kind::boolean)
      for (const Id operand : graph.operands(id)) deciding[operand] = true;
  return deciding;
}

}  // namespace

MultiplyAdds::MultiplyAdds(const Graph& graph) : product_(graph.size()) {
  const std::vector<bool> deciding = deciding_nodes(graph);
  for (Id id = 0; id < graph.size(); ++id) {
    if (deciding[id] || !(graph.is(id, Op::add) || graph.is(id, Op::subtract))) continue;
    for (const std::size_t i : {1, 0})
      if (graph.is(graph.operands(id)[i], Op::multiply)) product_[id] = i;
  }
}

std::vector<Id> MultiplyAdds::sources(const Graph& graph, Id id) const {
  const std::span<const Id> operands = graph.operands(id);
  const std::optional<std::size_t> product = product_in(id);
  if (!product) return {operands.begin(), operands.end()};
  const std::span<const Id> factors = graph.operands(operands[*product]);
  return {factors[0], factors[1], operands[1 - *product]};
}

std::vector<bool> MultiplyAdds::live_nodes(const Graph& graph, std::span<const Id> results,
                                           const std::vector<bool>& given) const {
  std::vector<bool> live(graph.size());
  for (const Id result : results) live[result] = true;
  for (Id id = static_cast<Id>(graph.size()); id-- > 0;)
    if (live[id] && (given.empty() || !given[id]))
      for (const Id source : sources(graph, id)) live[source] = true;
  return live;
}

}  // namespace spikeforge::graph
