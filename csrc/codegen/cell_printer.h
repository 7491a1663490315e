// A cell's stages as C++: a struct with the interface of csrc/neuron/cell.h, which the loop of
// cuda/multistep/multistep.cuh runs.
//
//   template <class F> struct Neuron    F is the arithmetic type
//     constructor   the prologue; stores the hoisted values, and the parameters that `finish` reads
//     initial       the initial values of states
//     step, vjp     the graphs of these names; vjp adds the gradient of each factor to a slot of grad_param, of which
//                   there are never more than parameters
//     coefficients, vjp of coefficients
//                   vjp in two parts: the part that depends on inputs and states, n_coefficients numbers (a condition
//                   is 1 or 0), and the rest, which reads these instead of inputs and states. The same operations,
//                   hence the same bits. Not for cells that draw.
//     finish        the epilogue
//     draws         present if the cell draws random numbers: constructor, step, vjp and finish then have Draws
//                   (neuron/draws.h) as a last argument
//
// It is C++17 for NVRTC, nvcc and the host compiler, and calls functions of neuron/functions.h. Every node of a graph
// is a local v<id>, followed by its name in the neuron.
#pragma once

#include "csrc/autodiff/stages.h"
#include "csrc/codegen/lines.h"
#include "csrc/graph/cell.h"
#include "csrc/graph/graph.h"

#include <string>
#include <vector>

namespace spikeforge::codegen {

// The text starts with its #include, and opens and closes namespace spikeforge.
std::string print_cell(const graph::Cell& cell, const autodiff::Stages& stages);

// The statements of a graph: a local v<id> for each node on which a result depends; `sources` are the expressions of
// arguments. Returns the results, as names or literals.
std::vector<std::string> print_body(Lines& line, const graph::Graph& graph, const std::vector<std::string>& sources);

}  // namespace spikeforge::codegen
