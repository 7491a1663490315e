// The composition of a cell's steps, if its next states are affine in its states: next_states = A states + b, where A
// and b depend on inputs and parameters. Consecutive steps compose to such a map again, which is found without the
// states before them: the element of a scan over time.
#pragma once

#include "csrc/graph/cell.h"

namespace spikeforge::autodiff {

// A cell with the same inputs and parameters, whose states are the map of the steps so far: A, row after row, then b.
// They start at the identity, and a step appends its own map: A_t A, A_t b + b_t. Its one output is 0.
//
// Throws GraphError, with the state and the reason, if a next state is not affine in the states.
graph::Cell composition(const graph::Cell& cell);

}  // namespace spikeforge::autodiff
