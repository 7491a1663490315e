// A call of event_frames, checked and in the form for kernels.
#pragma once

#include "csrc/kernels/frames/frames.h"
#include "ops/frames.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace spikeforge::ops::frames {

struct FramesCall {
  spikeforge::frames::FramesLaunch launch;
  at::Tensor sums, numbers;          // `out` and `numbers` of the launch; sums are the result without a second pass
  at::ScalarType type = at::kFloat;  // of the result
  std::vector<at::Tensor> held;      // the tensors that the launch reads
};

// Checks the arguments, and allocates the results.
FramesCall prepare_frames(const Events& events, const FrameOptions& options);

// Converts the results of the kernels to the result of the operator.
at::Tensor finished_frames(const FramesCall& call, const FrameOptions& options);

at::Tensor frames_cuda(const Events& events, const FrameOptions& options);

}  // namespace spikeforge::ops::frames
