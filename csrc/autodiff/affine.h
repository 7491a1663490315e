// The map that a time-parallel pass composes: results of a graph that are affine in some of its arguments,
//   result_i = Σ_j A_ij argument_j + b_i,
// as graphs of A and b. For the states of a cell's vjp: grad_states = A grad_next_states + b, where A and b are known
// from the recomputed states, the inputs and grad_outputs. For the states of some cells: next_states = A states + b,
// where A and b are known from the inputs.
#pragma once

#include "csrc/graph/cell.h"
#include "csrc/graph/graph.h"

#include <cstddef>
#include <stdexcept>
#include <string>

namespace spikeforge::autodiff {

// A range of arguments or results of a graph.
struct Range {
  std::size_t first, count;
};

struct NotAffine : std::logic_error {
  NotAffine(graph::Op op, const std::string& message) : std::logic_error(message), op(op) {}
  graph::Op op;  // of the first node that is not affine
};

// Returns a graph of A and b. The arguments are those of `graph`; no result depends on those of the range. The results
// are A_i1 .. A_in for each result i of the range, row by row, followed by each b_i. Throws NotAffine if a result is
// not affine in the arguments.
graph::Graph affine_map(const graph::Graph& graph, Range arguments, Range results);

// The composition of a cell's steps, if its next states are affine in its states: next_states = A states + b, where A
// and b depend on inputs and parameters. The composition of consecutive steps is such a map too, and is computed
// without the states before them: it is the element of a scan over time.
//
// Returns a cell with the same inputs and parameters, whose states are the map of the steps so far: A, row by row, then
// b. They start at the identity, and each step appends its map: A_t A, A_t b + b_t. The only output is 0.
//
// Throws GraphError, with the state and the reason, if a next state is not affine in the states.
graph::Cell composition(const graph::Cell& cell);

}  // namespace spikeforge::autodiff
