// A delay line: y[t] = x[t - d], zeros at the start, with one d for all neurons or one for each. (A connection of a
// Composite also delays, with one d for all.)
//
//   Delay delay(torch::tensor({0, 3, 1}));  // steps, broadcast to [*shape]
#pragma once

#include "csrc/nn/stateful.h"

namespace spikeforge::nn {

// State: "x", the last inputs, [longest delay, *shape], the oldest first.
class SPIKEFORGE_API DelayImpl : public Stateful {
 public:
  explicit DelayImpl(std::int64_t steps);
  // `steps` are integers >= 0. They are copied, and are neither a parameter nor a buffer: training and to() do not
  // change them.
  explicit DelayImpl(const at::Tensor& steps);

  const at::Tensor& steps() const { return steps_; }  // int64, on the CPU
  std::int64_t longest() const { return longest_; }

  Names state_names() const override { return {"x"}; }
  at::Tensor own_state(std::size_t /*i*/) const override { return past_; }
  Tensors at_rest(at::TensorList inputs) override;
  void pretty_print(std::ostream& stream) const override;
  Script script() const override;

 protected:
  const char* kind() const override { return "Delay"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<DelayImpl>(steps_); }
  void set_own_state(std::size_t i, at::Tensor value) override;

 private:
  at::Tensor steps_;
  std::int64_t longest_;
  bool is_uniform_;
  at::Tensor past_;
};
TORCH_MODULE(Delay);

}  // namespace spikeforge::nn
