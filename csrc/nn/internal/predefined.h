// The operator of a predefined neuron's module: one overload per neuron.
#pragma once

#include "csrc/nn/neurons.h"

namespace spikeforge::nn {

struct Described {
  const char* module;
  const char* op;  // of torch.ops.spikeforge, or cuba_lif, which has none
  Names states;
  std::vector<std::pair<const char*, Param>> constants;  // but v_reset
};

template <class Call> Described describe(const Call& call) {
  const NeuronRow& row = neuron_row(Call::kind);
  return {row.type, row.name, {row.states.begin(), row.states.end()}, call.constants()};
}
Described describe(const CubaLIFCall& call);

// All constants by name, v_reset after the others.
template <class Call> std::vector<std::pair<const char*, Param>> constants_of(const Call& call) {
  auto constants = describe(call).constants;
  if (call.v_reset) constants.emplace_back("v_reset", *call.v_reset);
  return constants;
}

// The initial value of each state: v at v_reset, or 0 under soft reset; w at w_rest; others at 0.
template <class Call> std::vector<Param> starts_of(const Call& call, std::size_t states) {
  std::vector<Param> starts(states, Param(0.0));
  if (call.v_reset) starts[0] = *call.v_reset;
  if constexpr (requires { call.w_rest; }) starts[1] = call.w_rest;
  return starts;
}

// The tensors among its constants.
template <class Call> Tensors tensors_of(const Call& call) {
  Tensors tensors;
  for (const auto& [name, param] : constants_of(call))
    if (param.is_tensor()) tensors.push_back(param.tensor());
  return tensors;
}

}  // namespace spikeforge::nn
