// The conditions that kernels of the CPU and the GPU rely on.
#pragma once

#include "csrc/custom_op/internal/operator.h"

namespace spikeforge::custom_op {

// Throws TypeError for a dtype that the user did not allow.
void check_dtypes(const Operator& op, Values values);

// Checks that a call's tensors are dense, of known dtypes and on one device, and makes them contiguous. Returns the
// first of them; the results are allocated on its device.
const at::Tensor& prepare(const Operator& op, torch::jit::Stack& stack);

}  // namespace spikeforge::custom_op
