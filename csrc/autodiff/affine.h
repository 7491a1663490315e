// The map that a time-parallel backward pass composes: results of a graph that are affine in some of its arguments,
//   result_i = Σ_j A_ij argument_j + b_i,
// as graphs of A and b. For the states of a cell's vjp: grad_states = A grad_next_states + b, where A and b are known
// from the recomputed states, the inputs and grad_outputs.
#pragma once

#include <spikeforge/autodiff/range.h>
#include <spikeforge/graph/graph.h>

namespace spikeforge::autodiff {

// Arguments: those of `graph`, though nothing depends on those of the range any more. Results: for each result of the
// range A_i1 .. A_in, row after row, and then each b_i. Throws std::logic_error for a graph that is not affine in them.
graph::Graph affine_map(const graph::Graph& graph, Range arguments, Range results);

}  // namespace spikeforge::autodiff
