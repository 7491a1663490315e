// The statements of a graph.
#pragma once

#include "csrc/codegen/lines.h"
#include "csrc/graph/graph.h"

#include <string>
#include <vector>

namespace spikeforge::codegen {

// A local v<id> for each node on which a result depends; `sources` are the expressions of arguments. Returns the
// results, as names or literals.
std::vector<std::string> print_body(Lines& line, const graph::Graph& graph, const std::vector<std::string>& sources);

}  // namespace spikeforge::codegen
