// The mode in which networks are built and stepped, independent of the caller's mode: without gradients, and not in
// inference mode, whose tensors cannot be changed outside of it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace spikeforge::simulation {

class Undifferentiated {
  const c10::InferenceMode ordinary_{false};  // this also enables gradients
  const at::NoGradGuard no_grad_;
};

}  // namespace spikeforge::simulation
