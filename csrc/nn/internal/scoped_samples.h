// Lengths and starts of samples in modules, besides their use as arguments of operators.
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

// In the form of an operator's argument.
inline std::optional<at::Tensor> maybe_given(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

// A sequence with zeros where its sample has started anew within the last `delay` steps, so that nothing arrives.
at::Tensor without_restarted(const Samples& samples, const at::Tensor& arriving, std::int64_t delay);

// The last `delay` steps of each sample, [delay, B, *shape]: `through` of those of `sent`, or of the values in flight
// `before` (undefined: zeros); zeros if the sample has restarted since.
at::Tensor leaving(const Samples& samples, const at::Tensor& sent, std::int64_t delay, const at::Tensor& before,
                   const std::function<at::Tensor(const at::Tensor&)>& through = nullptr);

}  // namespace spikeforge::nn
