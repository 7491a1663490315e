// Lengths and starts of samples in modules, in addition to their use as arguments of operators.
#pragma once

#include "csrc/nn/stateful.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace spikeforge::nn {

// During its lifetime, all modules at and below `module` use the samples. Throws c10::ValueError if one of them does
// not support samples, and for shapes that do not fit `inputs`.
class ScopedSamples {
 public:
  ScopedSamples(Stateful& module, const Samples& samples, at::TensorList inputs, std::int64_t steps);
  ~ScopedSamples();
  ScopedSamples(const ScopedSamples&) = delete;
  ScopedSamples& operator=(const ScopedSamples&) = delete;

 private:
  std::vector<std::pair<Stateful*, Samples>> before_;
};

// Converts a tensor to an optional argument of an operator.
inline std::optional<at::Tensor> maybe_given(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

// Returns the sequence with zeros at each step whose sample has restarted within the last `delay` steps, so that
// nothing arrives across a restart.
at::Tensor without_restarted(const Samples& samples, const at::Tensor& arriving, std::int64_t delay);

// The last `delay` steps of each sample, [delay, B, *shape]: `through` of those of `sent`, or of the values in flight
// `before` (undefined: zeros); zeros for steps before a restart of the sample.
at::Tensor leaving(const Samples& samples, const at::Tensor& sent, std::int64_t delay, const at::Tensor& before,
                   const std::function<at::Tensor(const at::Tensor&)>& through = nullptr);

}  // namespace spikeforge::nn
