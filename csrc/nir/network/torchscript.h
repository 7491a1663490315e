// Converts NIR graphs to TorchScript.
//
//   torch::jit::Module script = nir::to_torchscript(nir::read("network.nir"), {.dt = 1e-4});
//   script.save("network.pt");
#pragma once

#include "csrc/nir/network/options.h"

namespace torch::jit {
struct Module;
}

namespace spikeforge::nir {

// Returns to_torchscript(*to_module(graph, options), noise), in evaluation mode. Throws Error.
SPIKEFORGE_API torch::jit::Module to_torchscript(const Graph& graph, const ModuleOptions& options);

}  // namespace spikeforge::nir
