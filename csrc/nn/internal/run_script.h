// The script of a neuron that is written as text.
#pragma once

#include <spikeforge/nn/stateful.h>
#include <spikeforge/ops/neuron.h>

namespace spikeforge::nn {

struct RunScript {
  struct State {
    std::string name;
    double start = 0;
    std::string start_buffer = {};  // a tensor of the module that it starts at, instead
  };

  std::string name;  // of the class
  std::string text;
  Names inputs;
  std::size_t outputs = 1;
  std::vector<State> states;
  std::vector<std::pair<std::string, Param>> params;  // a tensor is the module's, by that name

  Script script() const;
};

}  // namespace spikeforge::nn
