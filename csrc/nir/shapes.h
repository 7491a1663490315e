// Shapes of the values in a graph, without batch and time.
#pragma once
#include "csrc/nir/interpret.h"

#include <optional>

namespace spikeforge::nir {

// strict: the rules of NIR. Parameters of a neuron have one shape, S; both ends of every edge have the same one; every
// shape can be inferred; and the declared shapes of a file (Input, Output, input_shape, input_type) are right.
// tolerant: parameters broadcast against the input; declared shapes that follow from the graph may be wrong or missing,
// with a warning.
enum class ShapeRule { strict, tolerant };

struct NodeShapes {
  std::optional<Shape> in, out;  // absent if they cannot be inferred
};

// Returns the shapes of each node, in the order of graph.nodes. A nested graph has the shapes of its Input and its
// Output. Throws an Error that names the node, or the edge between different shapes. `arriving` is the shape of the
// input of a nested graph; under the tolerant rule, it has precedence over the shape that the Input node declares.
SPIKEFORGE_API std::vector<NodeShapes> infer_shapes(const Graph& graph, ShapeRule rule = ShapeRule::strict,
                                                    Report* report = nullptr,
                                                    const std::optional<Shape>& arriving = {});

// Returns the output shape of one node for an input shape; for Input and nested graphs, the declared ones. Throws
// Error.
SPIKEFORGE_API Shape output_shape(const Node& node, const Shape& in, const std::string& name, ShapeRule rule);

// Sets optional fields that other programs need: the shape of Output, input_shape of convolutions, input_type of
// Flatten. Those that cannot be inferred stay absent. Parameters that broadcast are expanded.
SPIKEFORGE_API void fill_in_shapes(Graph& graph);

}  // namespace spikeforge::nir
