// Replacements of a new node that keep every bit of its value, in any floating-point type.
//
// Constants are double precision numbers that are rounded to the type of the computation. So arithmetic on two of them
// is not folded: 0.1 + 0.2 rounded to float32 is not the float32 sum of the rounded two, and two doubles that differ
// may round to the same float32. Negation and absolute value commute with rounding. Other expressions of constants are
// evaluated when the type is known; they cost nothing there, since values that depend on no input are computed once
// per neuron.
//
// Nor is x + 0 x (at x = -0), x - x 0 (at infinity), or x * 0 0.
#pragma once

#include "csrc/graph/graph.h"

namespace spikeforge::graph {

// The node that has the value of `op` on these operands, or nothing if only a new one has.
std::optional<Id> fold(Graph& graph, Op op, std::span<const Id> operands, const Surrogate& surrogate);

}  // namespace spikeforge::graph
