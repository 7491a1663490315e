// A neuron's constant as an argument of a module: a scalar, a tensor (one for all, per channel, per neuron), or either
// as a learned parameter:
//   LIFOptions().tau(2.0)    .tau(torch::full({8}, 2.0))    .tau(Learnable(2.0))    .tau(Learnable(2.0, {.min = 1.0}))
// A tensor is copied, and registered as a buffer; a learnable one as a parameter. If a learned constant has bounds,
// the neuron uses torch.clamp(value, min, max) of the value that the optimiser sets; beyond a bound the
// gradient is 0, as for clamp.
#pragma once

#include "ops/neuron.h"

#include <optional>
#include <utility>

namespace spikeforge::nn {

struct Bounds {
  std::optional<double> min = std::nullopt, max = std::nullopt;

  bool any() const { return min || max; }
};

struct Learnable {
  explicit Learnable(double number, Bounds bounds = {}) : initial(number), bounds(bounds) {}
  explicit Learnable(at::Tensor tensor, Bounds bounds = {}) : initial(std::move(tensor)), bounds(bounds) {}

  Param initial;
  Bounds bounds;
};

struct Constant {
  Constant(double number) : value(number) {}                 // NOLINT
  Constant(at::Tensor tensor) : value(std::move(tensor)) {}  // NOLINT
  Constant(Learnable learnable)                              // NOLINT
      : value(std::move(learnable.initial)), learn(true), bounds(learnable.bounds) {}

  Param value;
  bool learn = false;
  Bounds bounds;
};

}  // namespace spikeforge::nn
