// Forward-mode differentiation of a cell. The result is a cell: the neuron together with its tangents.
//
//   cell:  inputs x                  states v         params p            -> outputs y             next states v'
//   jvp:   inputs x, dx of some      states v, dv     params p, dp of some -> outputs y, dy         next states v', dv'
//
// dy = Σ ∂y/∂x dx + Σ ∂y/∂v dv + Σ ∂y/∂p dp, and the same for dv'; values without a tangent are constants, and dv
// starts at 0. Like any other cell, it runs over many steps, and it can be differentiated backward: the derivative of a
// backward pass is that of the tangents (ops/multistep/derivatives.h).
#pragma once

#include "csrc/graph/cell.h"

#include <cstddef>
#include <vector>

namespace spikeforge::autodiff {

// `inputs` and `params` are true for those that have tangents. Throws GraphError if the cell is too large.
graph::Cell jvp(const graph::Cell& cell, const std::vector<bool>& inputs, const std::vector<bool>& params);

// The effect of an input on the states of a neuron that does not fire: the trace of a presynaptic spike, from which
// online learning computes its gradients without traces of the postsynaptic neuron.
//
//   cell:      inputs x        states v      params p -> outputs y    next states v'
//   response:  input  z        states u      params p -> output  u'0  next states u'
//
// u is the tangent of v with respect to the input `into`, along the states of the cell if its inputs and spikes are 0:
// u' = ∂v'/∂v u + ∂v'/∂x z. If these derivatives depend on v, the states v come before u; a cell that is affine between
// its spikes has only u.
//
// The last state_count() states of the response are u. Throws GraphError if the cell has no states, or if the response
// is too large.
graph::Cell response(const graph::Cell& cell, std::size_t into);

}  // namespace spikeforge::autodiff
