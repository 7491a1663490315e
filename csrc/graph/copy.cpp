#include "csrc/graph/internal/copy.h"
#include "csrc/graph/cell.h"

#include <numeric>
#include <vector>

namespace spikeforge::graph {
namespace {

std::vector<bool> used_by(const Graph& graph, std::span<const Id> results) {
  std::vector<bool> used(graph.size());
  for (const Id result : results) used[result] = true;
  for (Id id = static_cast<Id>(graph.size()); id-- > 0;)
    if (used[id])
      for (const Id operand : graph.operands(id)) used[operand] = true;
  return used;
}

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

// Copies a draw, and numbers it in this order.
Id numbered(Graph& to, const Graph& from, Id id, std::span<const Id> copies, std::uint32_t& next) {
  Node node = from[id];
  node.draw.number = next;
  next += info(node.op).words;
  std::vector<Id> operands;
  for (const Id operand : from.operands(id)) operands.push_back(copies[operand]);
  return to.like(node, operands);
}

}  // namespace

Id copy_node(Graph& to, const Graph& from, Id id, std::span<const Id> copies) {
  const Node& node = from[id];
  std::array<Id, most_operands> operands{};
  for (std::size_t i = 0; i < from.operands(id).size(); ++i) operands[i] = copies[node.operands[i]];
  const std::span<const Id> used(operands.data(), from.operands(id).size());
  const Id copy = to.like(node, used);
  if (!from.name(id).empty()) to.set_name(copy, from.name(id));
  return copy;
}

std::vector<bool> live_nodes(const Graph& graph) { return used_by(graph, graph.results()); }

std::vector<Id> copy_into(Graph& to, const Graph& from, std::span<const Id> arguments, std::span<const Id> results) {
  const std::vector<bool> used = used_by(from, results);
  std::vector<Id> copies(from.size());
  std::copy(arguments.begin(), arguments.end(), copies.begin());
  for (Id id = static_cast<Id>(from.argument_count()); id < from.size(); ++id) {
    if (used[id]) copies[id] = copy_node(to, from, id, copies);
  }
  std::vector<Id> copied;
  for (const Id result : results) copied.push_back(copies[result]);
  return copied;
}

Graph restricted(const Graph& graph, std::size_t argument_count, std::span<const Id> results) {
  Graph copy;
  for (Id id = 0; id < argument_count; ++id) copy.argument(graph.name(id));
  std::vector<Id> arguments(argument_count);
  std::iota(arguments.begin(), arguments.end(), Id{0});
  for (const Id result : copy_into(copy, graph, arguments, results)) copy.add_result(result);
  return copy;
}

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
