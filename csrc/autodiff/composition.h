// The composition of a cell's steps, where its next states are affine in its states: next_states = A states + b with an
// A and a b that inputs and parameters decide. Of some steps one after the other that is such a map again, found
// without the states before them: what a scan over time is made of.
#pragma once

#include "csrc/graph/cell.h"

namespace spikeforge::autodiff {

// A cell with the same inputs and parameters, whose states are the map of the steps so far: A, row after row, then b.
// They start at the identity, and a step puts its own map behind: A_t A, A_t b + b_t. Its one output is 0.
//
// Throws GraphError where a next state is not affine in the states, and names it and why.
graph::Cell composition(const graph::Cell& cell);

}  // namespace spikeforge::autodiff
