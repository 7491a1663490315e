// Reverse-mode differentiation of a graph. The result is a separate graph.
//
//   graph:  arguments a_1..a_n                      -> results r_1..r_m
//   vjp:    arguments a_1..a_n, grad_r_1..grad_r_m  -> grad_a_1..grad_a_n,   grad_a_i = Σ_k grad_r_k ∂r_k/∂a_i
//
// For a cell: (inputs, states, parameters, grad_outputs, grad_next_states) -> (grad_inputs, grad_states, grad_params).
//
// The vjp is in plain arithmetic (lower.h), and surrogate_gradient. It is linear in the upstream gradients. Recomputed
// values of the step have the same bits. The graph has no unused nodes.
#pragma once

#include "csrc/graph/graph.h"

namespace spikeforge::autodiff {

graph::Graph vjp(const graph::Graph& primal);

// Returns the approximate number of nodes of a vjp for surrogate_gradient, without building the vjp. Other operations
// need a few nodes each, but the derivative of a Fourier series needs nodes for each of its terms.
std::size_t count_slopes(const graph::Graph& primal);

// True if a result of a vjp is 0 for all arguments: it need not be computed or stored.
bool is_zero(const graph::Graph& vjp, std::size_t result);

}  // namespace spikeforge::autodiff
