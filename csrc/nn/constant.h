// A neuron's constant as a module takes it: a number, a tensor (one for all, per channel, per neuron), or either to be
// learned:
//   LIFOptions().tau(2.0)    .tau(torch::full({8}, 2.0))    .tau(Learnable(2.0))
// A tensor is copied, and registered as a buffer; a learnable one as a parameter.
#pragma once

#include <spikeforge/ops/neuron.h>

#include <utility>

namespace spikeforge::nn {

struct Learnable {
  explicit Learnable(double number) : initial(number) {}
  explicit Learnable(at::Tensor tensor) : initial(std::move(tensor)) {}

  Param initial;
};

struct Constant {
  Constant(double number) : value(number) {}                                           // NOLINT
  Constant(at::Tensor tensor) : value(std::move(tensor)) {}                            // NOLINT
  Constant(Learnable learnable) : value(std::move(learnable.initial)), learn(true) {}  // NOLINT

  Param value;
  bool learn = false;
};

}  // namespace spikeforge::nn
