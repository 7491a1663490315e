// The composition of a traced cell's steps, as a cell of its own: what a scan over time runs beside the cell.
#pragma once

#include "csrc/kernels/multistep/traced_cell.h"

namespace spikeforge {

// The limit for a scan: a map has the square of the states.
constexpr std::size_t most_scanned_states = 4;

// Computed once. Throws GraphError with the reason if there is none: a next state that is not affine in the states, no
// states, or more than most_scanned_states.
const TracedCell& composition_of(const TracedCell& cell);

}  // namespace spikeforge
