// Shapes of what flows through a graph, without batch and time.
#pragma once
#include "csrc/nir/interpret.h"

#include <optional>

namespace spikeforge::nir {

// strict: as NIR has it. Parameters of a neuron have one shape, S; both ends of every edge have the same one; every
// shape can be told; and what a file says of shapes (Input, Output, input_shape, input_type) is right.
// tolerant: parameters broadcast against what arrives; shapes that only repeat what follows from the graph may be wrong
// or missing, with a warning.
enum class ShapeRule { strict, tolerant };

struct NodeShapes {
  std::optional<Shape> in, out;  // absent where they cannot be told
};

// For each node, in the order of graph.nodes. A nested graph stands for its Input and its Output. Throws Error that
// names the node, or the edge that joins different shapes. arriving: at the Input of a nested graph, which counts for
// more than what that says under the tolerant rule.
SPIKEFORGE_API std::vector<NodeShapes> infer_shapes(const Graph& graph, ShapeRule rule = ShapeRule::strict,
                                                    Report* report = nullptr,
                                                    const std::optional<Shape>& arriving = {});

// What one node makes of its input; of Input and nested graphs, what they say themselves. Throws Error.
SPIKEFORGE_API Shape output_shape(const Node& node, const Shape& in, const std::string& name, ShapeRule rule);

// Fields that may be left out and that other programs need: the shape of Output, input_shape of convolutions,
// input_type of Flatten. Those that cannot be told stay absent. And parameters that broadcast get the whole shape.
SPIKEFORGE_API void fill_in_shapes(Graph& graph);

}  // namespace spikeforge::nir
