// Mean and variance of channels by the multistep loop: its gradients by a parameter are sums over the neurons of a
// channel, so a neuron without a state whose gradients are those sums needs no kernel of its own.
#pragma once

#include "ops/multistep/multistep.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace spikeforge::ops::layers {

// x as [rows, channels, inner] in memory, copied if it is stored in neither order.
struct ByChannel {
  at::Tensor x;
  std::int64_t rows, channels, inner;

  // `dim` is counted from the front.
  ByChannel(const at::Tensor& given, std::int64_t dim) : channels(given.size(dim)) {
    const at::Tensor last = given.movedim(dim, -1);
    const bool is_last = last.is_contiguous();
    x = is_last ? last : given.contiguous();
    inner = 1;
    if (!is_last)
      for (std::int64_t d = dim + 1; d < given.dim(); ++d) inner *= given.size(d);
    rows = given.numel() / std::max<std::int64_t>(channels * inner, 1);
  }
};

struct Device {
  MultistepResults (*forward)(const MultistepCall&, bool save);
  Tensors (*backward)(const BackwardCall&);
};

// Mean and biased variance, [channels]. One pass over x, of sums of differences from a number near the channel's mean:
// the middle one of three that lie far apart, so that an outlier is not taken for the mean.
std::tuple<at::Tensor, at::Tensor> moments(const ByChannel& by, const Device& device);

}  // namespace spikeforge::ops::layers
