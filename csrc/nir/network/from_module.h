// A NIR graph from a module.
//
//   nir::write(nir::from_module(net, torch::zeros({1, 28, 28}), 1e-4), "network.nir");
//
// x has the shape of one step of one sample, [*shape], without time and batch: shapes in the file follow from it.
// dt is the duration of a step in seconds; modules count time constants in steps, NIR in seconds.
//
// Composites, Sequential and Recurrent among them, become graphs, nested ones nested graphs. Neurons: IF, LIF, PLIF,
// CubaLIF, LI, and those that came from a NIR graph. Layers: Linear, Conv1d, Conv2d, AvgPool2d, Flatten, Identity,
// Dropout (which is dropped), TimeDistributed and Delay. A connection's delay becomes a Delay node, or the back
// edge of a cycle.
//
// Properties without a form in NIR - soft reset, firing at the threshold itself, surrogates, learned parameters - are
// in the metadata, and to_module restores them for the same dt; `report` gets one warning for each of those that other
// programs will not reproduce.
#pragma once
#include "csrc/nir/interpret.h"
#include "csrc/nn/composite.h"

namespace spikeforge::nir {

// Throws Error, which names the module, for what NIR cannot express.
SPIKEFORGE_API Graph from_module(const nn::Part& module, const at::Tensor& x, double dt, Report* report = nullptr);

}  // namespace spikeforge::nir
