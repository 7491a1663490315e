// Evaluates a graph for given arguments, one operation at a time, with exactly the semantics of torch. Slow and
// obvious: it is the reference for the other backends.
#pragma once

#include "csrc/graph/graph.h"

#include <span>
#include <vector>

namespace spikeforge::graph {

// Evaluates one operation in F = float or double; booleans are 1 and 0. Constants are rounded to F.
template <class F> F evaluate_node(const Node& node, std::span<const F> operands);

// Returns the values of all nodes.
template <class F> std::vector<F> evaluate_nodes(const Graph& graph, std::span<const F> arguments);

// Returns the values of the results. Throws GraphError if the number of arguments is wrong.
template <class F> std::vector<F> evaluate(const Graph& graph, std::span<const F> arguments);

}  // namespace spikeforge::graph
