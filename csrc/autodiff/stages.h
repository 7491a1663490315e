// The graphs of a cell that a backend runs, in plain arithmetic (lower.h, and surrogate_gradient).
//
//   once per neuron, before the steps    prologue: params                                  -> hoisted
//   each step                            step:     inputs, states, hoisted                 -> outputs, next states
//   each step, backward                  backward: inputs, states, hoisted, grad_outputs, grad_next_states
//                                                                         -> grad_inputs, grad_states, grad_factors
//   once per neuron, after the steps     epilogue: params, Σ grad_factors                  -> grad_params
//
// Parameters enter the steps only through factors: expressions of parameters only, such as 1/tau. The gradient with
// respect to a factor is summed over the steps, and propagated to the parameters once. `hoisted` has the values that
// step and backward read instead of parameters: factors, and the parts of derivatives that depend only on factors. For
// a gradient that is always 0, including that of a factor that depends on no parameter, the result is the constant 0
// (is_zero in vjp.h): it need not be computed, stored or summed.
#pragma once

#include <vector>

#include "csrc/graph/cell.h"

namespace spikeforge::autodiff {

struct Stages {
  graph::Graph prologue, step, backward, epilogue;

  std::size_t inputs = 0, states = 0, params = 0, outputs = 0;
  std::size_t hoisted = 0;  // results of the prologue
  std::size_t factors = 0;  // no more of them have nonzero gradients than there are parameters
};

// Throws GraphError under the conditions of vjp.
Stages stages_of(const graph::Cell& cell);

// Returns the graph (inputs, states, hoisted, grad_outputs, grad_next_states) -> A, row by row, and b, where
// grad_states = A grad_next_states + b. Neither A nor b depends on grad_next_states.
graph::Graph state_adjoint_map(const Stages& stages);

// Returns the nodes of stages.backward that depend on inputs and states but on no gradient, and are read by nodes that
// depend on gradients, in ascending order. With these and the hoisted values, the rest of the derivative needs neither
// inputs nor states.
std::vector<graph::Id> coefficients(const Stages& stages);

}  // namespace spikeforge::autodiff
