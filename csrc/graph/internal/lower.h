// From the graph as a neuron is written to plain arithmetic, which is all that a forward pass computes.
//
//   spike(u, _)             where(u >= 0, 1, 0)
//   spike_strict(u, _)      where(u > 0, 1, 0)
//   select(s, a, b)         where(s == 1, a, b), without the detour over 1 and 0 where s is a spike
//   detach(x)               x
//   add_gradient(f, x, d)   f
//
// What is left of ops.def after it: everything else. Every bit of every result is as before.
#pragma once

#include "csrc/graph/cell.h"

namespace spikeforge::graph {

// s == 1 as a condition, for a lowered value.
Id fires(Graph& graph, Id s);

// Copies all nodes; `to` already has the arguments of `from` as its first ones. Entry i is what became of node i.
std::vector<Id> lower_into(Graph& to, const Graph& from);

Graph lowered(const Graph& graph);

}  // namespace spikeforge::graph
