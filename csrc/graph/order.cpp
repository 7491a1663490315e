#include "csrc/graph/internal/order.h"
#include "csrc/graph/cell.h"
#include "csrc/graph/internal/copy.h"

#include <vector>

namespace spikeforge::graph {
namespace {

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

}  // namespace

Graph in_order_of_need(const Graph& graph) {
  Graph ordered(most_nodes);
  std::vector<Id> copies(graph.size());
  for (Id id = 0; id < graph.argument_count(); ++id) copies[id] = ordered.argument(graph.name(id));
  std::uint32_t draws = 0;
  for (const Id id : order_of_need(graph)) {
    if (graph.is(id, Op::argument)) continue;
    copies[id] =
        is_draw(graph[id].op) ? numbered(ordered, graph, id, copies, draws) : copy_node(ordered, graph, id, copies);
  }
  for (const Id result : graph.results()) ordered.add_result(copies[result]);
  return ordered;
}

}  // namespace spikeforge::graph
