// The derivative of every operation, with torch's conventions at kinks.
#pragma once

#include "csrc/autodiff/adjoint.h"
#include "csrc/graph/graph.h"

#include <array>
#include <optional>

namespace spikeforge::autodiff {

// One node z = op(x, y, w) while its graph is differentiated. Values are those of the graph being made.
struct Site {
  graph::Value x, y, w;  // operands; those that the operation has not are 0
  graph::Value z;        // the result
  Adjoint g;             // the gradient by it
  graph::Surrogate surrogate;
};

// The contribution to the gradient by each operand. std::nullopt if it is always 0.
using Contributions = std::array<std::optional<Adjoint>, graph::most_operands>;

// The derivative of surrogate_gradient(u, surrogate) by u, in plain arithmetic: arguments u and an upstream gradient.
graph::Graph slope_of(const graph::Surrogate& surrogate);

Contributions contributions(graph::Op op, const Site& site);

}  // namespace spikeforge::autodiff
