// A vjp, arranged for a loop over time: gradients from the next step enter as late as possible.
//
// A step of the backward pass waits for g, the gradients with respect to the next states. After differentiation, g is
// multiplied by each derivative in turn; here the derivatives are multiplied first, which needs no g and can be done
// for many steps at once, and a sum of a few products, a_1 g_1 + a_2 g_2 + c, remains. For LIF it is the published form
// g (1 - S + (v_reset - h) Θ') + grad_s Θ'.
#pragma once

#include "csrc/autodiff/affine.h"
#include "csrc/graph/graph.h"

namespace spikeforge::autodiff {

// Returns the same function up to rounding. The results must be linear in the arguments `gradients`.
graph::Graph gathered(const graph::Graph& vjp, Range gradients);

}  // namespace spikeforge::autodiff
