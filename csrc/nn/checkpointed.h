// Sequences longer than memory: run in segments, of which the backward pass keeps the states between them alone and
// which it computes once more.
//
//   const auto run = [&](std::int64_t number, const std::vector<at::Tensor>& states) -> spikeforge::Segment {
//     const auto [spikes, v] = spikeforge::lif(layer->forward(read(number)), states.empty() ? none : states[0]);
//     return {loss_of(spikes), {v}};
//   };
//   const auto [loss, states] = spikeforge::checkpointed(run, /*segments=*/100, layer->parameters());
//   loss.backward();
//
// Memory is that of one segment and of the states between segments; time is at most one more forward pass.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace spikeforge {

// The result of a segment, or of all: an output, and the states after it.
struct Segment {
  at::Tensor output;
  std::vector<at::Tensor> states;
};

// A function of a segment's number, and of the states before it: none at first.
using SegmentRun = std::function<Segment(std::int64_t number, const std::vector<at::Tensor>& states)>;

struct CheckpointedOptions {
  std::vector<at::Tensor> states;  // before the first segment
  bool truncated = false;          // the gradient does not go from a segment to those before it
};

// Calls `run` for each segment, passes the states of one to the next, and sums the outputs: losses, or counts.
//
// `parameters` are all tensors that `run` reads and whose gradients are wanted; others get none. `run` is called
// twice for each segment, with the same arguments and the same random numbers of torch's generators on the CPU and on
// the device of the first tensor on a GPU. Throws c10::ValueError for no segments, and for segments that return another
// number of states than those before; second derivatives are c10::NotImplementedError.
SPIKEFORGE_API Segment checkpointed(SegmentRun run, std::int64_t segments, const std::vector<at::Tensor>& parameters,
                                    const CheckpointedOptions& options = {});

}  // namespace spikeforge
