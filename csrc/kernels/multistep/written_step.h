// Predefined neurons written down as equations, with values of a graph as their numbers: for what the tracer can do and
// a cell of C++ cannot, such as being differentiated twice.
#pragma once

#include "csrc/graph/trace.h"
#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/neuron_kind.h"

#include <span>
#include <vector>

namespace spikeforge {

struct WrittenStep {
  graph::Value spike;
  std::vector<graph::Value> next_states;
};

// Within a trace. The surrogate is another cell's choice than `form.surrogate`; `strict` fires at H > v_threshold.
// `params` are the cell's, in its order. The bits of a step are those of the cell's own; derivatives are within
// rounding.
WrittenStep written_step(NeuronKind kind, const CellForm& form, bool strict, const graph::Surrogate& surrogate,
                         graph::Values params, const graph::Value& x, graph::Values states);

// The initial value of a state if none is given: a parameter, or a number.
struct InitialState {
  int param = -1;  // by its place
  double number = 0;
};
std::vector<InitialState> initial_states(NeuronKind kind, bool hard_reset);

}  // namespace spikeforge
