// The steps by which connect draws a network, on each device.
#pragma once

#include "csrc/kernels/event/connection_rules.h"

#include <ATen/core/Tensor.h>

namespace spikeforge::ops::sparse {

void connect_cpu(event::ConnectStep step, const event::ConnectArguments& args);
// On the device of this tensor.
void connect_cuda(event::ConnectStep step, const event::ConnectArguments& args, const at::Tensor& beside);

}  // namespace spikeforge::ops::sparse
