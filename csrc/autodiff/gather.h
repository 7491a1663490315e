// A vjp, arranged for a loop over time: gradients from the next step enter as late as possible.
//
// A step of the backward pass waits for the gradients by the next states, g. After differentiation, they are multiplied
// by one derivative after the other; here the derivatives are multiplied first, which needs no g and can be done for
// many steps at once, and a sum of a few products, a_1 g_1 + a_2 g_2 + c, remains. For LIF it is the published form g
// (1 - S + (v_reset - h) Θ') + grad_s Θ'.
#pragma once

#include "csrc/autodiff/affine.h"
#include "csrc/graph/graph.h"

namespace spikeforge::autodiff {

// The same function but for rounding; `gradients` are arguments that the results are linear in.
graph::Graph gathered(const graph::Graph& vjp, Range gradients);

}  // namespace spikeforge::autodiff
