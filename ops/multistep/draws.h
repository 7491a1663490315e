// The random numbers that a cell draws, as a call says them: by a seed, and by an offset, the number of its first step.
// Both are int64 tensors of one element, so that who replays a captured graph or an exported model changes them in
// place.
#pragma once

#include "ops/common/layout.h"
#include "ops/multistep/multistep.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace spikeforge::ops {

// Sets those of a call whose inputs are set. Throws ValueError where its cell does not draw.
void set_draws(MultistepCall& call, const std::optional<at::Tensor>& seed, const std::optional<at::Tensor>& offset);

// Of a public operator: whether the call draws, and has none yet.
bool needs_seed(const MultistepCall& call);
// A call of a public operator, with a seed of the default generator of x's device where it needs one.
MultistepCall with_seed(MultistepCall call);

// Of a call of which `prepare` asks everything: that there is a seed where the cell draws, and that it is what it must
// be. Throws TypeError and ValueError.
void check_draws(const MultistepCall& call);

// Of a cell that draws, for a layout that order_of knows. Reads what is on the CPU.
DrawsView view_draws(const MultistepCall& call, const PlainLayout& layout);

// Nothing, where there is none.
inline std::optional<at::Tensor> given_seed(const MultistepCall& call) {
  return call.seed.defined() ? std::optional(call.seed) : std::nullopt;
}
inline std::optional<at::Tensor> given_offset(const MultistepCall& call) {
  return call.offset.defined() ? std::optional(call.offset) : std::nullopt;
}

}  // namespace spikeforge::ops
