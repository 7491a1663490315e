// NIR graphs as TorchScript.
//
//   torch::jit::Module script = nir::to_torchscript(nir::read("network.nir"), {.dt = 1e-4});
//   script.save("network.pt");
#pragma once

#include "csrc/nir/network/options.h"

namespace torch::jit {
struct Module;
}

namespace spikeforge::nir {

// to_torchscript(*to_module(graph, options), noise), in evaluation. Throws Error.
SPIKEFORGE_API torch::jit::Module to_torchscript(const Graph& graph, const ModuleOptions& options);

}  // namespace spikeforge::nir
