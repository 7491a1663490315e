#pragma once

#include "csrc/graph/graph.h"

#include <functional>
#include <set>
#include <string>
#include <utility>

namespace spikeforge::graph {

// Generates names for additional arguments of a graph.
class UnusedNames {
 public:
  explicit UnusedNames(const Graph& graph) {
    for (Id id = 0; id < graph.size(); ++id) used_.insert(graph.name(id));
  }

  // This one, or one that begins so.
  std::string take(std::string name) {
    while (!used_.insert(name).second) name += '_';
    return name;
  }

 private:
  std::set<std::string, std::less<>> used_;
};

}  // namespace spikeforge::graph
