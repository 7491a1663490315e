#include "csrc/graph/internal/hoist.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace spikeforge::graph {
namespace {

// Returns the hoistable nodes and parameters that are results or are used by a node that is not hoistable, in order.
std::vector<Id> frontier(const Graph& graph, const std::vector<bool>& hoistable, std::size_t first, std::size_t count) {
  const auto comes_from_outside = [&](Id id) { return hoistable[id] || (id >= first && id < first + count); };
  const std::vector<bool> live = live_nodes(graph);
  std::set<Id> wanted;
  for (Id id = 0; id < graph.size(); ++id) {
    if (!live[id] || hoistable[id]) continue;
    for (const Id operand : graph.operands(id))
      if (comes_from_outside(operand)) wanted.insert(operand);
  }
  for (const Id result : graph.results())
    if (comes_from_outside(result)) wanted.insert(result);
  return {wanted.begin(), wanted.end()};
}

// Returns the graph with the hoisted nodes as arguments in place of the parameters.
Graph inner_graph(const Graph& graph, std::span<const Id> hoisted, std::size_t first, std::size_t count) {
  Graph inner;
  std::vector<Id> copies(graph.size());
  UnusedNames names(graph);
  const auto name_of = [&](std::size_t i) {
    const std::string& name = graph.name(hoisted[i]);
    return name.empty() ? names.take(fmt::format("k{}", i)) : name;
  };
  const std::size_t end = first + count;
  for (Id id = 0; id < first; ++id) copies[id] = inner.argument(graph.name(id));
  for (std::size_t i = 0; i < hoisted.size(); ++i) copies[hoisted[i]] = inner.argument(name_of(i));
  for (Id id = static_cast<Id>(end); id < graph.argument_count(); ++id) copies[id] = inner.argument(graph.name(id));

  const std::vector<bool> live = live_nodes(graph);
  for (Id id = static_cast<Id>(graph.argument_count()); id < graph.size(); ++id) {
    if (!live[id] || std::ranges::binary_search(hoisted, id)) continue;
    copies[id] = copy_node(inner, graph, id, copies);
  }
  for (const Id result : graph.results()) inner.add_result(copies[result]);
  return compacted(inner);
}

}  // namespace

std::vector<bool> hoistable_nodes(const Graph& graph, std::size_t first, std::size_t count) {
  const Dependence depends(graph);
  const std::vector<bool> drawn = drawn_anew(graph);
  std::vector<bool> hoistable(graph.size());
  for (Id id = 0; id < graph.size(); ++id)
    hoistable[id] = info(graph[id].op).form != Form::leaf && graph.kind(id) == Kind::number && !drawn[id] &&
                    !depends.beyond(id, first, count);
  return hoistable;
}

Hoisted hoist(const Graph& graph, std::size_t first, std::size_t count) {
  const std::vector<Id> hoisted = frontier(graph, hoistable_nodes(graph, first, count), first, count);
  Graph prologue;
  std::vector<Id> arguments(graph.argument_count());  // only those of parameters are read
  for (std::size_t i = first; i < first + count; ++i) arguments[i] = prologue.argument(graph.name(static_cast<Id>(i)));
  for (const Id id : copy_into(prologue, graph, arguments, hoisted)) prologue.add_result(id);
  return {compacted(prologue), inner_graph(graph, hoisted, first, count)};
}

}  // namespace spikeforge::graph
