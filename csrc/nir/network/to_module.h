// A network of modules from a NIR graph.
//
//   nn::Composite net = nir::to_module(nir::read("network.nir"), {.dt = 1e-4});
//   at::Tensor spikes = net->forward(x);  // [T, *shape] or [T, batch, *shape]
//
// One part for each node, under its name (module_names); nested graphs are networks within. Inputs and Outputs are the
// network's ports. Where there is no Input, nodes that nothing leads to get one, "input_" and their name; where there
// is no Output, nodes that lead nowhere get one, "output_" and their name. A node that nothing leads to otherwise
// receives zeros.
//
// One explicit Euler step a time step: LIF is v + dt / tau * (v_leak - v + r * x). All states start at 0. What several
// edges bring is summed in the order of the edges, and an edge that is there twice counts twice. In cycles some edges
// carry the previous step's value: back_edges.h says which.
#pragma once
#include "csrc/nir/network/options.h"
#include "csrc/nn/composite.h"

namespace spikeforge::nir {

// Throws Error, which names node and field, for what cannot be represented.
SPIKEFORGE_API nn::Composite to_module(const Graph& graph, const ModuleOptions& options);

// The same, which leaves to the modules the weights that nobody but this graph holds.
SPIKEFORGE_API nn::Composite to_module(Graph&& graph, const ModuleOptions& options);

// The names of the nodes in the module, in the order of graph.nodes: a node's name, with _ for dots and after a
// reserved name, and a number after it if that is taken. A node inside a nested graph: "graph.node".
SPIKEFORGE_API std::vector<std::string> module_names(const Graph& graph,
                                                     const std::unordered_set<std::string>& reserved = {});

}  // namespace spikeforge::nir
