#include "csrc/nn/part.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/ops/stack.h>

namespace spikeforge::nn {
namespace {

at::Tensor aligned(const at::Tensor& x) {
  constexpr std::uintptr_t alignment = 64;  // of new tensors: c10/core/alignment.h; larger on GPUs
  return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % alignment == 0 ? x : x.clone();
}

}  // namespace

Tensors Part::run(at::TensorList inputs, std::int64_t steps) const {
  if (stateful_) return stateful_->run(inputs, steps);
  const at::Tensor& x_seq = inputs[0];
  if (steps == 1) return {call(aligned(x_seq.squeeze(0))).unsqueeze(0)};
  TORCH_CHECK_VALUE(steps > 0, module_->name(),
                    ": a module without states needs at least one step to determine the shape of its output");
  Tensors rows = x_seq.unbind(0);
  for (at::Tensor& row : rows) row = call(aligned(row));
  return {at::stack(rows)};
}

Part Part::clone() const {
  Part copy = *this;
  copy.module_ = module_->clone();
  if (stateful_) copy.stateful_ = dynamic_cast<Stateful*>(copy.module_.get());
  return copy;
}

TimeDistributedImpl::TimeDistributedImpl(Part part) : part_(std::move(part)) {
  TORCH_CHECK_VALUE(!part_.stateful(), "TimeDistributed: ", part_.stateful()->title(),
                    " has states and needs no TimeDistributed");
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
