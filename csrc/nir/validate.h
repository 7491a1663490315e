#pragma once
#include "csrc/nir/error.h"
#include "csrc/nir/interpret.h"

#include <optional>

namespace spikeforge::nir {

// Checks the conditions of every graph that is read or written: names are unique and have no slash, edges end at nodes,
// parameters have the ranks that their equations need, time constants are finite and > 0, delays finite and >= 0, and
// windows, strides and groups are consistent. infer_shapes() checks shapes between nodes. Throws Error; legal but
// unusual values go to the report.
SPIKEFORGE_API void validate(const Graph& graph, const Limits& limits = {}, Report* report = nullptr);

// Returns the reason why no program can run a valid graph: an edge leads to an Input or from an Output, or all nodes
// are behind cycles, so that no input reaches them.
SPIKEFORGE_API std::optional<Error> why_not_runnable(const Graph& graph);

}  // namespace spikeforge::nir
