// A NIR graph from a module.
//
//   nir::write(nir::from_module(net, torch::zeros({1, 28, 28}), 1e-4), "network.nir");
//
// x is what one step of one sample looks like, [*shape], without time and batch: shapes in the file are as it gives
// them. dt is the seconds of a step; modules count time constants in steps, NIR in seconds.
//
// Composites, Sequential and Recurrent among them, become graphs, nested ones nested graphs. Neurons: IF, LIF, PLIF,
// CubaLIF, LI, and those that came from a NIR graph. Layers: Linear, Conv1d, Conv2d, AvgPool2d, Flatten, Identity,
// Dropout (which is nothing then), TimeDistributed and Delay. A connection's delay becomes a Delay node, or the back
// edge of a cycle.
//
// What NIR cannot say - soft reset, firing at the threshold itself, surrogates, what is learned - is in the metadata,
// and to_module restores it for the same dt; `report` gets a warning, once, for each of those that other programs will
// do otherwise.
#pragma once
#include "csrc/nir/interpret.h"
#include "csrc/nn/composite.h"

namespace spikeforge::nir {

// Throws Error, which names the module, for what NIR cannot express.
SPIKEFORGE_API Graph from_module(const nn::Part& module, const at::Tensor& x, double dt, Report* report = nullptr);

}  // namespace spikeforge::nir
