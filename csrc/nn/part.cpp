#include "csrc/nn/part.h"

#include <ATen/ops/stack.h>

namespace spikeforge::nn {

namespace {

at::Tensor aligned(const at::Tensor& x) {
  constexpr std::uintptr_t alignment = 64;  // of new tensors: c10/core/alignment.h; on GPUs they have more
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

}  // namespace spikeforge::nn
