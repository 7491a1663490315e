// Copies of a graph's nodes into another graph.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// For each node, true if a result depends on it. False for unused arguments.
std::vector<bool> live_nodes(const Graph& graph);

// Copies a node that is not an argument, with its name; copies[i] is the copy of node i.
Id copy_node(Graph& to, const Graph& from, Id id, std::span<const Id> copies);

// Copies the nodes on which `results` depend, with arguments[i] in place of argument i, and returns the copies of the
// results.
std::vector<Id> copy_into(Graph& to, const Graph& from, std::span<const Id> arguments, std::span<const Id> results);

// Returns the graph of these results, with the first `argument_count` arguments, which must include all arguments on
// which the results depend. Unused nodes are removed; the others keep their order.
Graph restricted(const Graph& graph, std::size_t argument_count, std::span<const Id> results);

// Returns the graph without the nodes on which no result depends.
inline Graph compacted(const Graph& graph) { return restricted(graph, graph.argument_count(), graph.results()); }

// Returns the graph with its nodes in the order in which the results need them, with operands from left to right, and
// without unused nodes. C++ does not specify which operand of a + b is evaluated first; a text, and caches with the
// text as the key, must not depend on the compiler's choice. Draws are numbered in this order too.
Graph in_order_of_need(const Graph& graph);

// Generates names for additional arguments of a graph.
class UnusedNames {
 public:
  explicit UnusedNames(const Graph& graph) {
    for (Id id = 0; id < graph.size(); ++id) used_.insert(graph.name(id));
  }

  // Returns the name, with underscores appended if it is in use.
  std::string take(std::string name) {
    while (!used_.insert(name).second) name += '_';
    return name;
  }

 private:
  std::set<std::string, std::less<>> used_;
};

}  // namespace spikeforge::graph
