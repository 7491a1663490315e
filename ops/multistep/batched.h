// torch.vmap of multistep operators, as one fused call: the mapped dimension becomes the first one of the step's shape,
// on which a cell's equations do not depend.
#pragma once

#include "ops/multistep/multistep.h"

#include <string>

namespace spikeforge::ops {

// `run` calls the public operator through the dispatcher.
MultistepResults run_batched(const MultistepCall& call, MultistepResults (*run)(const MultistepCall&));
// The same for the lowered operators, which are called by transforms that differentiate inside the map.
MultistepResults forward_batched(const MultistepCall& call, bool save,
                                 MultistepResults (*run)(const MultistepCall&, bool save));
Tensors backward_batched(const BackwardCall& call, Tensors (*run)(const BackwardCall&));

// Throws the error for torch.autograd.grad(..., is_grads_batched=True), which does not use torch.vmap.
[[noreturn]] void refuse_batched_gradients(const std::string& op);

}  // namespace spikeforge::ops
