#pragma once

#include <spikeforge/graph/graph.h>

#include <functional>
#include <set>
#include <string>
#include <utility>

namespace spikeforge::autodiff {

// Names for arguments that a graph is given besides its own.
class UnusedNames {
 public:
  explicit UnusedNames(const graph::Graph& graph) {
    for (graph::Id id = 0; id < graph.size(); ++id) used_.insert(graph.name(id));
  }

  // This one, or one that begins so.
  std::string take(std::string name) {
    while (!used_.insert(name).second) name += '_';
    return name;
  }

 private:
  std::set<std::string, std::less<>> used_;
};

}  // namespace spikeforge::autodiff
