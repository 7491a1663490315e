// The classes that are not of spikeforge::nn, by their type.
#pragma once

#include "csrc/nn/script.h"

#include <functional>
#include <string>

namespace spikeforge::script {

struct Known {
  std::function<Script(const torch::nn::Module&)> script;
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> call;
};

// Null for a class that is not known.
const Known* find(const torch::nn::Module& module);

// "Linear", without namespaces and "Impl".
std::string class_name(const torch::nn::Module& module);

}  // namespace spikeforge::script
