// A network of modules from a NIR graph.
//
//   nn::Composite net = nir::to_module(nir::read("network.nir"), {.dt = 1e-4});
//   at::Tensor spikes = net->forward(x);  // [T, *shape] or [T, batch, *shape]
//
// One part for each node, under its name (module_names); nested graphs are networks within. Inputs and Outputs are the
// network's ports. Without an Input, nodes without predecessors get one, "input_" and their name; without
// an Output, nodes without successors get one, "output_" and their name. Other nodes without predecessors
// receive zeros.
//
// One explicit Euler step per time step: LIF is v + dt / tau * (v_leak - v + r * x). All states start at 0. The values
// of several edges are summed in the order of the edges, and a duplicate edge counts twice. In cycles some edges carry
// the previous step's value: see back_edges.h.
#pragma once
#include "csrc/nir/network/options.h"
#include "csrc/nn/composite.h"

namespace spikeforge::nir {

// Throws Error, which names node and field, for what cannot be represented.
SPIKEFORGE_API nn::Composite to_module(const Graph& graph, const ModuleOptions& options);

// The same, but moves weights without another owner into the modules.
SPIKEFORGE_API nn::Composite to_module(Graph&& graph, const ModuleOptions& options);

// The names of the nodes in the module, in the order of graph.nodes: a node's name, with _ for dots and after a
// reserved name, and a number after it if that is taken. A node inside a nested graph: "graph.node".
SPIKEFORGE_API std::vector<std::string> module_names(const Graph& graph,
                                                     const std::unordered_set<std::string>& reserved = {});

}  // namespace spikeforge::nir
