// Which arguments each node of a graph depends on.
#pragma once

#include <spikeforge/graph/graph.h>

#include <vector>

namespace spikeforge::graph {

class Dependence {
 public:
  explicit Dependence(const Graph& graph);

  bool on(Id node, std::size_t argument) const { return bits_[node][argument]; }
  // On any argument outside of [first, first + count)?
  bool beyond(Id node, std::size_t first, std::size_t count) const;

 private:
  std::vector<std::vector<bool>> bits_;
};

}  // namespace spikeforge::graph
