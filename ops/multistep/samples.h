// The arguments `lengths`, the number of steps of each sample, and `start` [T, B], which is true before steps at which
// a sample restarts. A sample is an index of x's dimension 1. In lowered operators, lengths has the number of
// dimensions of a step of x, and start that of x, so that both broadcast even if dimensions are inserted.
#pragma once

#include "ops/multistep/multistep.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace spikeforge::ops {

// Sets the lengths and starts of a call whose inputs are set. Throws TypeError and ValueError for illegal types and
// shapes.
void set_samples(MultistepCall& call, const std::optional<at::Tensor>& lengths, const std::optional<at::Tensor>& start);

}  // namespace spikeforge::ops
