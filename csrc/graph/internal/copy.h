// Copies of a graph's nodes into another graph.
#pragma once

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// For each node, whether a result is made of it. Arguments that nothing uses are not.
std::vector<bool> live_nodes(const Graph& graph);

// Copies one node that is no argument, with its name; copies[i] is what became of node i.
Id copy_node(Graph& to, const Graph& from, Id id, std::span<const Id> copies);

// Copies what `results` are made of, where arguments[i] stands for argument i, and returns what became of each result.
std::vector<Id> copy_into(Graph& to, const Graph& from, std::span<const Id> arguments, std::span<const Id> results);

// The same function with the first `argument_count` arguments, all that `results` are made of, and these results. Nodes
// that they do not use are gone; the others keep their order.
Graph restricted(const Graph& graph, std::size_t argument_count, std::span<const Id> results);

// Without the nodes that no result is made of.
inline Graph compacted(const Graph& graph) { return restricted(graph, graph.argument_count(), graph.results()); }

}  // namespace spikeforge::graph
