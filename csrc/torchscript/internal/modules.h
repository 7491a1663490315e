// Module classes outside spikeforge::nn, by their type.
#pragma once

#include "csrc/nn/script.h"

#include <functional>
#include <string>

namespace spikeforge::script {

struct Known {
  std::function<Script(const torch::nn::Module&)> script;
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> call;
};

// Returns null for an unknown class.
const Known* find(const torch::nn::Module& module);

// Returns the name without namespaces and "Impl", such as "Linear".
std::string class_name(const torch::nn::Module& module);

}  // namespace spikeforge::script
