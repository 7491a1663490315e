// What a predefined neuron's module needs of its operator: one overload each a neuron.
#pragma once

#include <spikeforge/nn/neurons.h>

namespace spikeforge::nn {

struct Described {
  const char* module;
  const char* op;  // of torch.ops.spikeforge
  Names states;
  std::vector<std::pair<const char*, Param>> constants;  // but v_reset
};

// The neuron as a traced cell; a strict one fires where H > v_threshold.
struct TracedNeuron {
  spikeforge::Neuron neuron;
  Tensors params;  // the tensors among the constants; numbers are in the cell
};

// traced_cell throws c10::ValueError for numbers and surrogates that are not legal, and without `spiking`.
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) \
  Described describe(const Struct##Call& call);                          \
  TracedNeuron traced_cell(const Struct##Call& call, bool strict);
#include <spikeforge/neuron/neurons.def>
Described describe(const CubaLIFCall& call);
TracedNeuron traced_cell(const CubaLIFCall& call, bool strict);

}  // namespace spikeforge::nn
