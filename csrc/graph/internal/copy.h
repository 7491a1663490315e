// Copies of a graph's nodes into another graph.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// For each node, true if a result depends on it. False for arguments without a use.
std::vector<bool> live_nodes(const Graph& graph);

// Copies one node that is no argument, with its name; copies[i] is what became of node i.
Id copy_node(Graph& to, const Graph& from, Id id, std::span<const Id> copies);

// Copies the nodes on which `results` depend, with arguments[i] in place of argument i, and returns the copies of the
// results.
std::vector<Id> copy_into(Graph& to, const Graph& from, std::span<const Id> arguments, std::span<const Id> results);

// The same function with the first `argument_count` arguments, all on which `results` depend, and these results. Nodes
// that they do not use are removed; the others keep their order.
Graph restricted(const Graph& graph, std::size_t argument_count, std::span<const Id> results);

// The graph without nodes on which no result depends.
inline Graph compacted(const Graph& graph) { return restricted(graph, graph.argument_count(), graph.results()); }

// The same function, its nodes in the order in which the results need them, operands from the left, and without those
// that no result needs. C++ leaves open which operand of a + b is evaluated first; a text, and whatever is kept under
// it, must not depend on the compiler's choice. Draws are numbered in this order too.
Graph in_order_of_need(const Graph& graph);

// Generates names for additional arguments of a graph.
class UnusedNames {
 public:
  explicit UnusedNames(const Graph& graph) {
    for (Id id = 0; id < graph.size(); ++id) used_.insert(graph.name(id));
  }

  // This one, or one that begins so.
  std::string take(std::string name) {
    while (!used_.insert(name).second) name += '_';
    return name;
  }

 private:
  std::set<std::string, std::less<>> used_;
};

}  // namespace spikeforge::graph
