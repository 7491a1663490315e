// The derivative of every operation, with torch's conventions at kinks.
#pragma once

#include "csrc/graph/graph.h"
#include "csrc/graph/value.h"

#include <array>
#include <optional>

namespace spikeforge::autodiff {

// The gradient of a loss with respect to one node, while a graph is differentiated backward.
//
// It is an expression that is linear in the upstream gradients, and this type has only the operations that keep it
// linear: hence the vjp of a cell is linear in them by construction (affine.h relies on it).
//
// The gradient through a branch that was not taken is 0 for any derivative: 0 times the infinite derivative of a sqrt
// at 0 must not be NaN. Therefore a mask is stored with the value, and applied after all factors.
class Adjoint {
 public:
  explicit Adjoint(graph::Value value) : value_(value) {}

  // Returns the gradient, with 0 where the mask is false.
  graph::Value value() const;

  Adjoint operator-() const { return {-value_, mask_}; }
  Adjoint operator*(const graph::Value& factor) const { return {value_ * factor, mask_}; }
  // Multiplies by the reciprocal, which is computed once per neuron if the divisor depends on parameters only.
  Adjoint operator/(const graph::Value& divisor) const { return *this * (1 / divisor); }
  Adjoint operator+(const Adjoint& other) const;

  // Returns the gradient with 0 where the condition is false.
  Adjoint where(const graph::Value& condition) const;

 private:
  Adjoint(graph::Value value, std::optional<graph::Value> mask) : value_(value), mask_(mask) {}

  graph::Value value_;
  std::optional<graph::Value> mask_;
};

// One node z = op(x, y, w) while its graph is differentiated. The Values belong to the graph of the derivative.
struct Site {
  graph::Value x, y, w;  // operands; missing ones are 0
  graph::Value z;        // the result
  Adjoint g;             // the gradient with respect to z
  graph::Surrogate surrogate;
};

// The contribution to the gradient with respect to each operand; std::nullopt if it is always 0.
using Contributions = std::array<std::optional<Adjoint>, graph::most_operands>;

// Returns the derivative of surrogate_gradient(u, surrogate) with respect to u, in plain arithmetic. The arguments are
// u and an upstream gradient.
graph::Graph slope_of(const graph::Surrogate& surrogate);

Contributions contributions(graph::Op op, const Site& site);

}  // namespace spikeforge::autodiff
