// From the values of a file to a graph, and back.
#pragma once
#include <spikeforge/nir/limits.h>
#include <spikeforge/nir/node.h>

namespace spikeforge::nir {

// What else reading found out.
struct SPIKEFORGE_API Report {
  std::string version;                // as the file says, which is unreliable; empty where it says nothing
  std::vector<std::string> warnings;  // one line each: unknown fields, duplicate edges, NaN, missing inputs, ...

  void warn(const std::string& text);
};

// Files of all versions from 0.0.1 on. Throws Error; the graph is checked as by validate().
SPIKEFORGE_API Graph graph_of(const Group& file, const Limits& limits, Report& report);

// In the newest layout. What validate() and infer_shapes() ask for is taken for granted.
SPIKEFORGE_API Group group_of(const Graph& graph);

// The version of the layout that group_of writes.
SPIKEFORGE_API std::string_view written_version();

}  // namespace spikeforge::nir
