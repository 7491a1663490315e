#pragma once
#include <spikeforge/nir/interpret.h>

namespace spikeforge::nir {

// What holds of every graph that is read or written: names are unique and have no slash, edges end at nodes, parameters
// have the ranks that their equations need, time constants are finite and > 0, delays finite and >= 0, and windows,
// strides and groups make sense. Shapes between nodes are infer_shapes()'s business. Throws Error; what is legal but
// strange goes to the report.
SPIKEFORGE_API void validate(const Graph& graph, const Limits& limits = {}, Report* report = nullptr);

}  // namespace spikeforge::nir
