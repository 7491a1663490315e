// Converts a NIR graph to a network of modules.
//
//   nn::Composite net = nir::to_module(nir::read("network.nir"), {.dt = 1e-4});
//   at::Tensor spikes = net->forward(x);  // [T, *shape] or [T, batch, *shape]
//
// Each node becomes a part with its name (module_names), and each nested graph a nested network. Inputs and Outputs are
// the network's ports. In a graph without an Input, each node without predecessors gets a port "input_" plus its name;
// without an Output, each node without successors gets a port "output_" plus its name. Other nodes without predecessors
// receive zeros.
//
// A time step is one explicit Euler step: LIF is v + dt / tau * (v_leak - v + r * x). All states start at 0. The values
// of several edges are summed in the order of the edges, and a duplicate edge counts twice. In cycles some edges carry
// the previous step's value: see back_edges.h.
#pragma once
#include "csrc/nir/network/options.h"
#include "csrc/nn/composite.h"

namespace spikeforge::nir {

// Throws Error with node and field if a node cannot be represented.
SPIKEFORGE_API nn::Composite to_module(const Graph& graph, const ModuleOptions& options);

// The same, but moves weights without another owner into the modules.
SPIKEFORGE_API nn::Composite to_module(Graph&& graph, const ModuleOptions& options);

// Returns the names of the nodes in the module, in the order of graph.nodes. Dots become _, a reserved name gets the
// suffix _, and a duplicate name a number. A node inside a nested graph has the name "graph.node".
SPIKEFORGE_API std::vector<std::string> module_names(const Graph& graph,
                                                     const std::unordered_set<std::string>& reserved = {});

}  // namespace spikeforge::nir
