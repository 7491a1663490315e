// Mean and variance of channels by the multistep loop: its gradients by a parameter are sums over the neurons of a
// channel, so a neuron without a state whose gradients are those sums needs no kernel of its own.
#pragma once

#include "ops/layer/by_channel.h"
#include "ops/multistep/multistep.h"

#include <tuple>

namespace spikeforge::ops::layers {

struct Device {
  MultistepResults (*forward)(const MultistepCall&, bool save);
  Tensors (*backward)(const BackwardCall&);
};

// Mean and biased variance, [channels]. One pass over x, of sums of differences from a number near the channel's mean:
// the middle one of three that lie far apart, so that an outlier is not taken for the mean.
std::tuple<at::Tensor, at::Tensor> moments(const ByChannel& by, const Device& device);

}  // namespace spikeforge::ops::layers
