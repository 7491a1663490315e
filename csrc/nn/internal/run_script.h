// The TorchScript form of a neuron that runs as neuron text.
#pragma once

#include "csrc/nn/constant.h"
#include "csrc/nn/stateful.h"

namespace spikeforge::nn {

struct RunScript {
  struct State {
    std::string name;
    double start = 0;
    std::string start_buffer = {};  // the tensor of the module with the initial value, in place of `start`
    Bounds start_bounds = {};       // the bounds of that tensor
  };
  struct Constant {
    std::string name;
    Param value;  // a tensor is the module's tensor of that name
    Bounds bounds = {};
  };

  std::string name;  // the name of the class
  std::string text;
  Names inputs;
  std::size_t outputs = 1;
  bool scan = false;
  std::vector<State> states;
  std::vector<Constant> params;

  Script script() const;
};

// Returns the source text of a tensor clamped to its bounds.
std::string clamped(const std::string& tensor, const Bounds& bounds);

}  // namespace spikeforge::nn
