// Folds time into the batch: one call of a layer without time (Linear, Conv, BatchNorm, pooling) for all steps.
//
//   TimeDistributed conv(torch::nn::Conv2d(...));  // [T, batch, ...] -> [T * batch, ...] -> conv -> [T, batch, ...]
//
// Fewer and larger calls are faster in training. The last bits of a row may depend on the number of rows: for BLAS and
// convolutions with one or two rows on the CPU, but not for BatchNorm in evaluation or pooling. So step, forward and
// chunks agree within rounding, and exactly if sums are exact (for example spikes times weights of few bits); without
// TimeDistributed, containers call such a layer once per step, and all three agree bit for bit. BatchNorm in training
// computes its statistics over steps and batch together.
#pragma once

#include "csrc/nn/part.h"

namespace spikeforge::nn {

class SPIKEFORGE_API TimeDistributedImpl : public Stateful {
 public:
  // Wraps a torch module. Throws c10::ValueError for a module with states, which processes time itself.
  explicit TimeDistributedImpl(Part part);
  template <class Module, std::enable_if_t<!std::is_same_v<std::decay_t<Module>, Part>, int> = 0>
  explicit TimeDistributedImpl(Module module) : TimeDistributedImpl(Part(std::move(module))) {}

  Script script() const override;

 protected:
  const char* kind() const override { return "TimeDistributed"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<TimeDistributedImpl>(part_.clone()); }

 private:
  Part part_;
};
TORCH_MODULE(TimeDistributed);

}  // namespace spikeforge::nn
