// Forward-mode differentiation of a cell, into a cell of its own: the neuron with its tangents beside it.
//
//   cell:  inputs x                  states v         params p            -> outputs y             next states v'
//   jvp:   inputs x, dx of some      states v, dv     params p, dp of some -> outputs y, dy         next states v', dv'
//
// dy = Σ ∂y/∂x dx + Σ ∂y/∂v dv + Σ ∂y/∂p dp, and dv' alike; what has no tangent is a constant, and dv starts at 0.
// Being a cell it runs over many steps as any other does, and it can be differentiated backward: the derivative of a
// backward pass is that of the tangents (ops/multistep/derivatives.h).
#pragma once

#include "csrc/graph/cell.h"

#include <cstddef>
#include <vector>

namespace spikeforge::autodiff {

// `inputs` and `params` say which have tangents. Throws GraphError for a cell that becomes too large.
graph::Cell jvp(const graph::Cell& cell, const std::vector<bool>& inputs, const std::vector<bool>& params);

// The effect of an input on the states of a neuron that does not fire: the trace of a presynaptic spike, from which
// online learning without traces of its own neuron computes its gradients.
//
//   cell:      inputs x        states v      params p -> outputs y    next states v'
//   response:  input  z        states u      params p -> output  u'0  next states u'
//
// u is the tangent of v by the input `into`, along the states of the cell without input, where its inputs are 0 and
// its spikes 0: u' = ∂v'/∂v u + ∂v'/∂x z. If these derivatives depend on v, the states v come before u; a cell that is
// affine between its spikes has only u.
//
// The last state_count() states of the response are u. Throws GraphError for a cell without states, or one that
// becomes too large.
graph::Cell response(const graph::Cell& cell, std::size_t into);

}  // namespace spikeforge::autodiff
