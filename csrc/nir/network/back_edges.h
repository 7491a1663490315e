// Finds the edges of a graph with cycles that carry the value of the previous step. The other edges define the order of
// nodes in a step.
//
// NIR does not define them. The rule is that of NIRTorch, SpikingJelly, Norse and snnTorch: nodes wait in a queue, the
// first Input at its head and the others in the order of the graph (in a file: by name). A node is processed after all
// its predecessors. If it has several, it does not wait for a predecessor that is reachable from it: that edge is cut.
// So in input -> lif -> w -> lif the edge w -> lif is cut. Cycles that are not reachable from an Input are cut at their
// first node.
#pragma once
#include "csrc/nir/node.h"

namespace spikeforge::nir {

struct StepOrder {
  std::vector<std::size_t> nodes;  // all nodes of the graph, in the order of a step
  std::vector<bool> is_back_edge;  // one per edge
};

// The graph must pass validate().
SPIKEFORGE_API StepOrder step_order(const Graph& graph);

// True if a node computes each step separately, so that a delay before it can be moved after it.
bool is_layer(const Node& node);
// True if the node also maps zeros to zeros, so that the first step is the same too.
bool keeps_zeros(const Node& node);

}  // namespace spikeforge::nir
