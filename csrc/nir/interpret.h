// Converts the values of a file to a graph, and back.
#pragma once
#include "csrc/nir/limits.h"
#include "csrc/nir/node.h"

namespace spikeforge::nir {

// Further results of reading.
struct SPIKEFORGE_API Report {
  std::string version;                // from the file, and unreliable; empty if absent
  std::vector<std::string> warnings;  // one line each: unknown fields, duplicate edges, NaN, missing inputs, ...

  std::string defect;  // the reason why the graph is invalid, if requested; else empty

  void warn(const std::string& text);
};

// The handling of a graph that fails validate(): an Error, or a defect in the report. In the latter case, the graph may
// only be inspected.
enum class Soundness { required, reported };

// Reads files of all versions from 0.0.1 on. Throws Error.
SPIKEFORGE_API Graph graph_of(const Group& file, const Limits& limits, Report& report,
                              Soundness soundness = Soundness::required);

// Returns the values in the newest layout. The graph must pass validate() and infer_shapes().
SPIKEFORGE_API Group group_of(const Graph& graph);

// Returns the version of the layout that group_of writes.
SPIKEFORGE_API std::string_view written_version();

}  // namespace spikeforge::nir
