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

// Some arguments or results of a graph.
struct Range {
  std::size_t first, count;
};

struct NotAffine : std::logic_error {
  NotAffine(graph::Op op, const std::string& message) : std::logic_error(message), op(op) {}
  graph::Op op;  // of the first node that is not
};

// Arguments: those of `graph`, though nothing depends on those of the range any more. Results: for each result of the
// range A_i1 .. A_in, row after row, and then each b_i. Throws NotAffine for a graph that is not affine in them.
graph::Graph affine_map(const graph::Graph& graph, Range arguments, Range results);

// The composition of a cell's steps, if its next states are affine in its states: next_states = A states + b, where A
// and b depend on inputs and parameters. Consecutive steps compose to such a map again, which is found without the
// states before them: the element of a scan over time.
//
// A cell with the same inputs and parameters, whose states are the map of the steps so far: A, row after row, then b.
// They start at the identity, and a step appends its own map: A_t A, A_t b + b_t. Its one output is 0.
//
// Throws GraphError, with the state and the reason, if a next state is not affine in the states.
graph::Cell composition(const graph::Cell& cell);

}  // namespace spikeforge::autodiff
