// Lowers the graph of a neuron to plain arithmetic, which is sufficient for a forward pass.
//
//   spike(u, _)             where(u >= 0, 1, 0)
//   spike_strict(u, _)      where(u > 0, 1, 0)
//   select(s, a, b)         where(s == 1, a, b), without the intermediate 1 and 0 if s is a spike
//   detach(x)               x
//   add_gradient(f, x, d)   f
//
// Other operations of ops.def do not change. Results are the same bit for bit.
#pragma once

#include "csrc/graph/cell.h"
#include "csrc/graph/synapse.h"

namespace spikeforge::graph {

// Returns the condition s == 1 of a lowered value.
Id fires(Graph& graph, Id s);

// Copies all nodes to `to`, whose first arguments are those of `from`. Entry i of the result is the copy of node i.
std::vector<Id> lower_into(Graph& to, const Graph& from);

Graph lowered(const Graph& graph);

// A block of a plasticity rule with only these results: its states, or its traces, and sent values.
Graph lowered(const SynapseBlock& block, bool of_traces, bool sends);

}  // namespace spikeforge::graph
