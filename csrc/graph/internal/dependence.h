// The arguments on which each node of a graph depends.
#pragma once

#include "csrc/graph/graph.h"

#include <vector>

namespace spikeforge::graph {

class Dependence {
 public:
  explicit Dependence(const Graph& graph);

  bool on(Id node, std::size_t argument) const { return bits_[node][argument]; }
  // True if the node depends on an argument outside of [first, first + count).
  bool beyond(Id node, std::size_t first, std::size_t count) const;

 private:
  std::vector<std::vector<bool>> bits_;
};

// True if a result depends on a draw.
bool draws(const Graph& graph);

// For each node, true if it depends on a draw; and true if it depends on a draw that differs from step to step.
std::vector<bool> drawn(const Graph& graph);
std::vector<bool> drawn_anew(const Graph& graph);

}  // namespace spikeforge::graph
