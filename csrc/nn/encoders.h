// Converts values to spikes. An encoder maps [T, *shape] to [T, *shape], each step separately; `encode` repeats the
// same values for several steps. Values are between 0 and 1.
#pragma once

#include "csrc/nn/stateful.h"

#include <ATen/core/Generator.h>

namespace spikeforge::nn {

class SPIKEFORGE_API Encoder : public Stateful {
 public:
  // Converts values [*shape] to spikes [steps, *shape].
  at::Tensor encode(const at::Tensor& x, std::int64_t steps);
};

// Fires in each step, independently, with the probability given by the value. Random numbers are drawn step by step, so
// a sequence in chunks gets the same ones. With a private Generator, the generator's state is the state "random";
// reset() does not change it.
class SPIKEFORGE_API PoissonImpl : public Encoder {
 public:
  explicit PoissonImpl(std::optional<at::Generator> generator = {}) : generator_(std::move(generator)) {}

  Names state_names() const override { return generator_ ? Names{"random"} : Names{}; }
  bool draws() const override { return true; }
  at::Tensor own_state(std::size_t i) const override;
  // Only without a private Generator.
  Script script() const override;

 protected:
  const char* kind() const override { return "Poisson"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override;
  void set_own_state(std::size_t i, at::Tensor value) override;

 private:
  std::optional<at::Generator> generator_;
};
TORCH_MODULE(Poisson);

// Fires once: the larger the value, the earlier the spike. It is in step round((steps - 1) (1 - value)), counted from
// 0, of the first `steps` steps after reset(). The state "t", int64, counts the steps.
class SPIKEFORGE_API LatencyImpl : public Encoder {
 public:
  explicit LatencyImpl(std::int64_t steps);

  Names state_names() const override { return {"t"}; }
  at::Tensor own_state(std::size_t i) const override;
  Script script() const override;

 protected:
  const char* kind() const override { return "Latency"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<LatencyImpl>(steps_); }
  void set_own_state(std::size_t i, at::Tensor value) override;

 private:
  std::int64_t steps_, t_ = 0;
};
TORCH_MODULE(Latency);

// Returns the values unchanged: a constant current.
class SPIKEFORGE_API RepeatImpl : public Encoder {
 public:
  Script script() const override { return {.name = "Repeat", .forward = "return x"}; }

 protected:
  const char* kind() const override { return "Repeat"; }
  Tensors advance(at::TensorList inputs, std::int64_t steps) override;
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<RepeatImpl>(); }
};
TORCH_MODULE(Repeat);

}  // namespace spikeforge::nn
