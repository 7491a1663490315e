// The map that a time-parallel pass composes: results of a graph that are affine in some of its arguments,
//   result_i = Σ_j A_ij argument_j + b_i,
// as graphs of A and b. For the states of a cell's vjp: grad_states = A grad_next_states + b, where A and b are known
// from the recomputed states, the inputs and grad_outputs. For the states of some cells: next_states = A states + b,
// where A and b are known from the inputs (composition.h).
#pragma once

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

}  // namespace spikeforge::autodiff
