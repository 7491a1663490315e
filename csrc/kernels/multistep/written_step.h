// Predefined neurons written down as equations, with values of a graph as their numbers: for what the tracer can do and
// a cell of C++ cannot, such as being differentiated twice.
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

// Within a trace. The surrogate is another cell's choice than `form.surrogate`. `params` are the cell's, in its order.
// The bits of a step are those of the cell's own; derivatives are within rounding.
WrittenStep written_step(NeuronKind kind, const CellForm& form, const graph::Surrogate& surrogate, graph::Values params,
                         const graph::Value& x, graph::Values states);

// The initial value of a state if none is given: a parameter, or a number.
struct InitialState {
  int param = -1;  // by its place
  double number = 0;
};
std::vector<InitialState> initial_states(NeuronKind kind, bool hard_reset);

// A predefined neuron, or cuba_lif, as a text describes it. Each constant is a number of the text or a parameter; one
// that is both is a parameter whose number states start at. Without v_reset the reset is soft.
struct NeuronDescription {
  std::string neuron;  // by its operator's name
  std::string name;    // of the text
  std::string spike;   // neuron text of the spike at u: "spike(u, atan(2))"
  std::vector<std::string> params;
  std::vector<std::pair<std::string, double>> numbers;
  bool detach_reset = false, decay_input = true;
  bool divides = false;  // divides by time constants, where the neuron's struct multiplies by their reciprocals
};

// Throws GraphError for an unknown neuron, a missing constant and a spike that cannot be read.
graph::Cell trace_neuron(const NeuronDescription& described);

}  // namespace spikeforge
