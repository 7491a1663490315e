// The arguments of random draws: a seed, and an offset, the number of the first step. Both are int64 tensors of one
// element, so that the replay of a captured graph or an exported model can change them in place.
#pragma once

#include "ops/common/layout.h"
#include "ops/multistep/multistep.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace spikeforge::ops {

// Sets the seed and offset of a call whose inputs are set. Throws ValueError if its cell does not draw.
void set_draws(MultistepCall& call, const std::optional<at::Tensor>& seed, const std::optional<at::Tensor>& offset);

// True if a call of a public operator draws and has no seed yet.
bool needs_seed(const MultistepCall& call);
// Returns the call of a public operator, with a seed from the default generator of x's device if it needs one.
MultistepCall with_seed(MultistepCall call);

// Checks for `prepare` that a call of a cell that draws has a legal seed. Throws TypeError and ValueError.
void check_draws(const MultistepCall& call);

// Returns the arguments of kernels, for a cell that draws and a layout that order_of supports. Reads values on the CPU.
DrawsView view_draws(const MultistepCall& call, const PlainLayout& layout);

}  // namespace spikeforge::ops
