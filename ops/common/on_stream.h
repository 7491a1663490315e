// The device and stream of a kernel launch.
#pragma once

#include "csrc/jit/device.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::ops {

// Returns the device of a CUDA tensor.
const jit::Device& gpu_of(const at::Tensor& x);

// Returns the device's current stream, and makes the device's context current on this thread.
void* stream_of(const at::Tensor& x);

}  // namespace spikeforge::ops
