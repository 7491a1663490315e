// The edges of a graph with cycles that carry the previous step's value, so that the others define an order of a step.
//
// NIR does not define them. The rule is that of NIRTorch, SpikingJelly, Norse and snnTorch: nodes wait in a queue, the
// first Input at its head and the others as the graph lists them (after a file was read: by name). A node is processed
// when every node with an edge to it is done; with several such nodes, one that is reachable from it need not be: that
// edge is cut. So in input -> lif -> w -> lif the edge w -> lif is cut. Cycles that are not reachable from an Input are
// cut at their first node.
#pragma once
#include "csrc/nir/node.h"

namespace spikeforge::nir {

struct StepOrder {
  std::vector<std::size_t> nodes;  // all nodes of the graph, in the order of a step
  std::vector<bool> is_back_edge;  // of each edge
};

// The edges join nodes of the graph, which validate() sees to.
SPIKEFORGE_API StepOrder step_order(const Graph& graph);

// True if a node computes each step by itself, so that a delay may be before it as well as after it.
bool is_layer(const Node& node);
// True if it also gives zeros for zeros, so that the first step is the same too.
bool keeps_zeros(const Node& node);

}  // namespace spikeforge::nir
