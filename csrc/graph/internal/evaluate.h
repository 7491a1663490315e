// A graph on given numbers: slow and obvious, one operation after another, with torch's semantics to the letter. It is
// what other backends are measured against.
#pragma once

#include "csrc/graph/graph.h"

#include <span>
#include <vector>

namespace spikeforge::graph {

// One operation on operands in F = float or double; booleans are 1 and 0. Constants are rounded to F.
template <class F> F evaluate_node(const Node& node, std::span<const F> operands);

// The values of all nodes.
template <class F> std::vector<F> evaluate_nodes(const Graph& graph, std::span<const F> arguments);

// The values of the results. Throws GraphError if the number of arguments is wrong.
template <class F> std::vector<F> evaluate(const Graph& graph, std::span<const F> arguments);

}  // namespace spikeforge::graph
