// The order in which the parts of a network run. C++ modules, TorchScript and the Python package use the same plan.
#pragma once

#include <vector>

namespace spikeforge::nn {

struct PlannedEdge {
  int from, to;  // indices of parts; -1: an input or output of the network
  bool is_delayed;
};

struct Stage {
  std::vector<int> nodes;  // one part, or the parts of a loop in the order of a step
  bool is_loop = false;
  std::vector<int> edges_into, edges_within, edges_from;  // for a loop, in the order in which they were added
};

// Returns the stages in the order in which they run. Two parts are in one loop if each reaches the other. If several
// parts can be next, the part that was added first is. Edges without a delay must not form a cycle.
std::vector<Stage> plan_stages(int parts, const std::vector<PlannedEdge>& edges);

}  // namespace spikeforge::nn
