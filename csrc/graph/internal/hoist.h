// Moves the computation of values that depend only on parameters out of the loop over the steps: once per neuron.
#pragma once

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// For each node, true if it is a number that depends on no argument outside of [first, first + count), and is neither a
// constant nor an argument.
std::vector<bool> hoistable_nodes(const Graph& graph, std::size_t first, std::size_t count);

// A graph split in two: inner(..., prologue(p), ...) == graph(..., p, ...), bit for bit.
struct Hoisted {
  Graph prologue;  // arguments: the parameters. Results: the values that `inner` reads, including parameters
  Graph inner;     // arguments and results: as in the graph, but the prologue's results replace the parameters
};

// Arguments [first, first + count) are the parameters. Booleans stay in `inner`, even those that depend only on
// parameters.
Hoisted hoist(const Graph& graph, std::size_t first, std::size_t count);

}  // namespace spikeforge::graph
