// NIR graphs as TorchScript, and back.
//
//   torch::jit::Module script = nir::to_torchscript(nir::read("network.nir"), {.dt = 1e-4});
//   script.save("network.pt");                                   // in Python: load, train, save
//   nir::write(nir::from_torchscript("network.pt"), "trained.nir");
#pragma once
#include "csrc/nir/network/options.h"

#include <string>

namespace torch::jit {
struct Module;
}

namespace spikeforge::nir {

// to_torchscript(*to_module(graph, options), noise), in evaluation, with the graph as an attribute: without the arrays
// that are tensors of the module, and with what its type rounds away of them. Throws Error.
SPIKEFORGE_API torch::jit::Module to_torchscript(const Graph& graph, const ModuleOptions& options);

// The graph with the present values of the module's parameters and buffers. An array that has its values still is as it
// was; one that was trained keeps its type if that holds the values, and has the module's otherwise. Throws Error for
// what nir::to_torchscript did not make, for frozen modules, and for tensors whose shapes were altered.
SPIKEFORGE_API Graph from_torchscript(const torch::jit::Module& module, const Limits& limits = {});

// The same of a saved one, which may come from a stranger: nothing of its code is compiled or run, and torch
// does not unpickle it.
SPIKEFORGE_API Graph from_torchscript(const std::string& file, const Limits& limits = {});

}  // namespace spikeforge::nir
