// The gradient of a loss by one node, while a graph is differentiated backward.
//
// It is an expression that is linear in the upstream gradients, and this type knows only the operations that keep it
// so: hence the vjp of a cell is linear in them by construction (affine.h relies on it).
//
// Where a branch was not taken, a gradient is 0, whatever the derivative there: 0 times the infinite derivative of a
// sqrt at 0 must not become NaN. So a mask is kept beside the value, and applied when all factors are.
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
  // By way of the reciprocal, which is computed once a neuron if the divisor is made of parameters.
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
