// Predefined neurons recorded as a graph, for features that a traced cell has and a C++ cell does not, such as a second
// derivative.
#pragma once

#include "csrc/graph/trace.h"
#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/neuron_kind.h"

#include <string>
#include <utility>
#include <vector>

namespace spikeforge {

struct WrittenStep {
  graph::Value spike;
  std::vector<graph::Value> next_states;
};

// Records a step within a trace. `surrogate` replaces `form.surrogate`. `params` are the parameters of the cell, in
// order. A step has the same bits as a step of the cell; derivatives are equal up to rounding.
WrittenStep written_step(NeuronKind kind, const CellForm& form, const graph::Surrogate& surrogate, graph::Values params,
                         const graph::Value& x, graph::Values states);

// The initial value of a state if none is given: a parameter, or a number.
struct InitialState {
  int param = -1;  // the index of a parameter; -1: `number`
  double number = 0;
};
std::vector<InitialState> initial_states(NeuronKind kind, bool hard_reset);

// A description of a predefined neuron, or of cuba_lif, for its neuron text. Each constant is a number or a parameter;
// if it is both, it is a parameter, and states start at the number. Without v_reset, the reset is soft.
struct NeuronDescription {
  std::string neuron;  // the name of its operator
  std::string name;    // of the text
  std::string spike;   // neuron text of the spike at u: "spike(u, atan(2))"
  std::vector<std::string> params;
  std::vector<std::pair<std::string, double>> numbers;
  bool detach_reset = false, decay_input = true;
  bool divides = false;  // divides by time constants instead of multiplying by their reciprocals
};

// Returns the cell of a description. Throws GraphError for an unknown neuron, a missing constant, and a spike that
// cannot be parsed.
graph::Cell trace_neuron(const NeuronDescription& described);

}  // namespace spikeforge
