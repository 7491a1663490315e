// Gradient checkpointing for sequences that exceed memory: the sequence runs in segments. Only the states between
// segments are saved, and the backward pass recomputes each segment.
//
//   const auto run = [&](std::int64_t number, const std::vector<at::Tensor>& states) -> spikeforge::Segment {
//     const auto [spikes, v] = spikeforge::lif(layer->forward(read(number)), states.empty() ? none : states[0]);
//     return {loss_of(spikes), {v}};
//   };
//   const auto [loss, states] = spikeforge::checkpointed(run, /*segments=*/100, layer->parameters());
//   loss.backward();
//
// Memory is that of one segment and of the states between segments. The additional time is at most one forward pass.
#pragma once

#include "csrc/base/export.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace spikeforge {

// The result of one segment, or of all segments: an output, and the states after it.
struct Segment {
  at::Tensor output;
  std::vector<at::Tensor> states;
};

// A function of the index of a segment and of the states before it. The list of states is empty for the first segment.
using SegmentRun = std::function<Segment(std::int64_t number, const std::vector<at::Tensor>& states)>;

struct CheckpointedOptions {
  std::vector<at::Tensor> states;  // the states before the first segment
  bool truncated = false;          // true: no gradient flows between segments
};

// Calls `run` for each segment, passes the states of one to the next, and sums the outputs: losses, or counts.
//
// `parameters` must contain each tensor that `run` reads and that needs a gradient; other tensors get none. `run` is
// called twice for each segment, with the same arguments and the same random numbers from torch's generators on the CPU
// and on the device of the first tensor on a GPU. Throws c10::ValueError for 0 segments, and if segments return
// different numbers of states; second derivatives throw c10::NotImplementedError.
SPIKEFORGE_API Segment checkpointed(SegmentRun run, std::int64_t segments, const std::vector<at::Tensor>& parameters,
                                    const CheckpointedOptions& options = {});

}  // namespace spikeforge
