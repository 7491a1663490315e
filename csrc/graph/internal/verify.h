// Checks properties that every graph has by construction; for tests, and for tools that change graphs.
#pragma once

#include "csrc/graph/cell.h"

namespace spikeforge::graph {

// Throws a GraphError that names the node unless operands precede their users and have the right kinds, arguments are
// the first nodes, and results are numbers.
void verify(std::span<const Node> nodes, std::size_t argument_count, std::span<const Id> results);
inline void verify(const Graph& graph) { verify(graph.nodes(), graph.argument_count(), graph.results()); }

// Also checks that the cell is finished and within its limits, and that names are legal and unique.
void verify(const Cell& cell);

}  // namespace spikeforge::graph
