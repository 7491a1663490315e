// The device and stream of a kernel launch.
#pragma once

#include "csrc/jit/device.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::ops {

// The device of a CUDA tensor.
const jit::Device& gpu_of(const at::Tensor& x);

// The device's current stream, with its context current on this thread.
void* stream_of(const at::Tensor& x);

}  // namespace spikeforge::ops
