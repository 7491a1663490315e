// Moves the computation of values that depend on parameters alone before the loop over the steps, once per neuron.
#pragma once

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// For each node, whether it is a number that depends on no argument outside of [first, first + count), and more than a
// constant or an argument.
std::vector<bool> hoistable_nodes(const Graph& graph, std::size_t first, std::size_t count);

// A graph split in two: inner(..., prologue(p), ...) == graph(..., p, ...), bit for bit.
struct Hoisted {
  Graph prologue;  // arguments: the parameters. Results: what `inner` needs of them, parameters themselves included
  Graph inner;     // arguments and results: as the graph's, but with the prologue's results for the parameters
};

// Arguments [first, first + count) are the parameters. A boolean that depends on them only stays in `inner`.
Hoisted hoist(const Graph& graph, std::size_t first, std::size_t count);

}  // namespace spikeforge::graph
