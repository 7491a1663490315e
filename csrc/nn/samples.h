// Batches of sequences that differ in length, or that restart: an argument of a module's call.
//
//   at::Tensor spikes = net(x_seq, Samples{.lengths = lengths});
//
// All neurons at and below the module use it (ops/neuron.h defines lengths and starts); values that were sent before a
// start do not arrive after it, and the values in flight afterwards are those that each sample sent last. Modules
// without support for samples raise an error: BatchNorm in training, BatchNormNeuron, Delay, encoders with states, and
// stepped loops of a Composite.
#pragma once

#include <ATen/core/Tensor.h>

namespace spikeforge::nn {

// A sample is an index of dimension 1 of the input, [T, B, *shape].
struct Samples {
  at::Tensor lengths{};  // int32 or int64 [B]; undefined: all have T steps
  at::Tensor start{};    // bool [T, B]: true before steps at which the states restart; undefined: never

  bool any() const { return lengths.defined() || start.defined(); }
};

}  // namespace spikeforge::nn
