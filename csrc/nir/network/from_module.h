// Converts a module to a NIR graph.
//
//   nir::write(nir::from_module(net, torch::zeros({1, 28, 28}), 1e-4), "network.nir");
//
// x has the shape of one step of one sample, [*shape], without time and batch. It determines the shapes in the file. dt
// is the duration of a step in seconds; modules count time constants in steps, NIR in seconds.
//
// Composites, including Sequential and Recurrent, become graphs, and nested ones nested graphs. Neurons: IF, LIF, PLIF,
// CubaLIF, LI, and those imported from a NIR graph. Layers: Linear, Conv1d, Conv2d, AvgPool2d, Flatten, Identity,
// Dropout (which is dropped), TimeDistributed and Delay. The delay of a connection becomes a Delay node, or the back
// edge of a cycle.
//
// Properties that NIR cannot express (soft reset, firing at exactly the threshold, surrogates, learned parameters) are
// stored in the metadata, and to_module restores them for the same dt. `report` receives one warning for each of these
// that other programs will not reproduce.
#pragma once
#include "csrc/nir/interpret.h"
#include "csrc/nn/composite.h"

namespace spikeforge::nir {

// Throws Error with the name of the module if NIR cannot express it.
SPIKEFORGE_API Graph from_module(const nn::Part& module, const at::Tensor& x, double dt, Report* report = nullptr);

}  // namespace spikeforge::nir
