// The effect of an input on the states of a neuron that does not fire: the trace of a presynaptic spike, from which
// online learning without traces of its own neuron computes its gradients.
//
//   cell:      inputs x        states v      params p -> outputs y    next states v'
//   response:  input  z        states u      params p -> output  u'0  next states u'
//
// u is the tangent of v by the input `into`, along the states of the cell without input, where its inputs are 0 and
// its spikes 0: u' = ∂v'/∂v u + ∂v'/∂x z. If these derivatives depend on v, the states v come before u; a cell that is
// affine between its spikes has only u.
#pragma once

#include "csrc/graph/cell.h"

#include <cstddef>

namespace spikeforge::autodiff {

// The last state_count() states of the response are u. Throws GraphError for a cell without states, or one that
// becomes too large.
graph::Cell response(const graph::Cell& cell, std::size_t into);

}  // namespace spikeforge::autodiff
