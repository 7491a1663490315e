// The gradient of a loss by one node, while a graph is differentiated backward.
//
// It is an expression that is linear in the upstream gradients, and this type has only the operations that keep it
// linear: hence the vjp of a cell is linear in them by construction (affine.h relies on it).
//
// The gradient across a branch that was not taken is 0, whatever the derivative there: 0 times the infinite derivative
// of a sqrt at 0 must not become NaN. So a mask is kept beside the value, and applied after all factors.
#pragma once

#include "csrc/graph/value.h"

#include <optional>

namespace spikeforge::autodiff {

class Adjoint {
 public:
  explicit Adjoint(graph::Value value) : value_(value) {}

  // 0 where the mask is false.
  graph::Value value() const;

  Adjoint operator-() const { return {-value_, mask_}; }
  Adjoint operator*(const graph::Value& factor) const { return {value_ * factor, mask_}; }
  // Multiplies by the reciprocal, which is computed once per neuron if the divisor depends on parameters only.
  Adjoint operator/(const graph::Value& divisor) const { return *this * (1 / divisor); }
  Adjoint operator+(const Adjoint& other) const;

  // 0 where the condition does not hold.
  Adjoint where(const graph::Value& condition) const;

 private:
  Adjoint(graph::Value value, std::optional<graph::Value> mask) : value_(value), mask_(mask) {}

  graph::Value value_;
  std::optional<graph::Value> mask_;
};

}  // namespace spikeforge::autodiff
