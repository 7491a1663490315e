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

Described describe(const IfOptions& call);
Described describe(const LifOptions& call);
Described describe(const PlifCall& call);
Described describe(const QifOptions& call);
Described describe(const EifOptions& call);
Described describe(const spikeforge::IzhikevichOptions& call);
Described describe(const CubaLifCall& call);

// The neuron as a traced cell; a strict one fires where H > v_threshold.
struct TracedCell {
  spikeforge::Neuron neuron;
  Tensors params;  // the tensors among the constants; numbers are in the cell
};

// Throws c10::ValueError for numbers and surrogates that are not legal, and without `spiking`.
TracedCell traced_cell(const IfOptions& call, bool strict);
TracedCell traced_cell(const LifOptions& call, bool strict);
TracedCell traced_cell(const PlifCall& call, bool strict);
TracedCell traced_cell(const QifOptions& call, bool strict);
TracedCell traced_cell(const EifOptions& call, bool strict);
TracedCell traced_cell(const spikeforge::IzhikevichOptions& call, bool strict);
TracedCell traced_cell(const CubaLifCall& call, bool strict);

}  // namespace spikeforge::nn
