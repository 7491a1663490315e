#pragma once
#include "csrc/nir/error.h"
#include "csrc/nir/interpret.h"

#include <optional>

namespace spikeforge::nir {

// What holds of every graph that is read or written: names are unique and have no slash, edges end at nodes, parameters
// have the ranks that their equations need, time constants are finite and > 0, delays finite and >= 0, and windows,
// strides and groups make sense. Shapes between nodes are infer_shapes()'s business. Throws Error; what is legal but
// strange goes to the report.
SPIKEFORGE_API void validate(const Graph& graph, const Limits& limits = {}, Report* report = nullptr);

// Why no program can run a sound graph: an edge leads to an Input, or on from an Output, or nothing leads into it from
// outside, as all of its nodes lie behind cycles.
SPIKEFORGE_API std::optional<Error> why_not_runnable(const Graph& graph);

}  // namespace spikeforge::nir
