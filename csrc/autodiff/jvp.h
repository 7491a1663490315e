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

#include <vector>

namespace spikeforge::autodiff {

// `inputs` and `params` say which have tangents. Throws GraphError for a cell that becomes too large.
graph::Cell jvp(const graph::Cell& cell, const std::vector<bool>& inputs, const std::vector<bool>& params);

}  // namespace spikeforge::autodiff
