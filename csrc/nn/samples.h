// Batches of sequences that differ in length, or that start anew on the way: what a module's call is told of them.
//
//   at::Tensor spikes = net(x_seq, Samples{.lengths = lengths});
//
// It tells all neurons at and below the module (ops/neuron.h says what lengths and starts mean to them); nothing that
// was sent before a start arrives behind it, and what is on its way afterwards is what each sample sent last. What
// cannot know them refuses them in words: BatchNorm in training, BatchNormNeuron, Delay, encoders with states, loops of
// a Composite that are stepped.
#pragma once

#include <ATen/core/Tensor.h>

namespace spikeforge::nn {

// A sample is an index of dimension 1 of the input, [T, B, *shape].
struct Samples {
  at::Tensor lengths{};  // int32 or int64 [B]; undefined: all have T steps
  at::Tensor start{};    // bool [T, B]: before which steps the states start anew; undefined: before none

  bool any() const { return lengths.defined() || start.defined(); }
};

}  // namespace spikeforge::nn
