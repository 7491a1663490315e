// The mode in which networks are built and stepped, whatever the caller's: without gradients, and not in inference
// mode, whose tensors could not be stepped outside it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace spikeforge::simulation {

class Undifferentiated {
  const c10::InferenceMode ordinary_{false};  // which turns gradients on
  const at::NoGradGuard no_grad_;
};

}  // namespace spikeforge::simulation
