// Checks that hold for every graph by the way graphs are made; for tests, and for tools that change graphs.
#pragma once

#include "csrc/graph/cell.h"

namespace spikeforge::graph {

// Throws GraphError that names the node: operands come first and have the right kinds, arguments are the first nodes,
// results are numbers.
void verify(std::span<const Node> nodes, std::size_t argument_count, std::span<const Id> results);
inline void verify(const Graph& graph) { verify(graph.nodes(), graph.argument_count(), graph.results()); }

// Also: it is finished, within its bounds, and names are legal and unique.
void verify(const Cell& cell);

}  // namespace spikeforge::graph
