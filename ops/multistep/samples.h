// The arguments `lengths`, the number of steps of each sample, and `start` [T, B], which is true where a sample starts
// anew. A sample is an index of x's dimension 1. In lowered operators, lengths has as many dimensions as a step
// of x, and start as many as x, so that both broadcast even if dimensions are inserted.
#pragma once

#include "ops/multistep/multistep.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace spikeforge::ops {

// Sets those of a call whose inputs are set. Throws TypeError and ValueError for illegal types and shapes.
void set_samples(MultistepCall& call, const std::optional<at::Tensor>& lengths, const std::optional<at::Tensor>& start);

}  // namespace spikeforge::ops
