// A state, parameter or buffer by its dotted name, through the aliases of the networks on the way.
#pragma once

#include "csrc/nn/stateful.h"

namespace spikeforge::nn {

struct Variable {
  Stateful* owner = nullptr;  // of a state
  std::size_t state = 0;
  at::Tensor tensor;  // a parameter or a buffer

  explicit operator bool() const { return owner || tensor.defined(); }
};

// Empty where there is none.
Variable find_variable(const torch::nn::Module& root, const std::string& name);

}  // namespace spikeforge::nn
