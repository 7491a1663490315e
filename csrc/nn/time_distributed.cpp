#include "csrc/nn/time_distributed.h"

namespace spikeforge::nn {

TimeDistributedImpl::TimeDistributedImpl(Part part) : part_(std::move(part)) {
  TORCH_CHECK_VALUE(!part_.stateful(), "TimeDistributed: ", part_.stateful()->title(),
                    " has states and takes sequences as it is");
  register_module("module", part_.module());
}

Tensors TimeDistributedImpl::advance(at::TensorList inputs, std::int64_t steps) {
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].dim() >= 2, title(), ": takes one input [T, batch, ...]");
  const at::Tensor& x = inputs[0];
  const at::Tensor y = part_.call(x.flatten(0, 1));
  return {y.unflatten(0, {steps, x.size(1)})};
}

Script TimeDistributedImpl::script() const {
  return {.name = "TimeDistributed",
          .forward =
              "y = self.module.forward(torch.flatten(x, 0, 1))\n"
              "return torch.unflatten(y, 0, [x.size(0), x.size(1)])"};
}

}  // namespace spikeforge::nn
