// The part of a step's derivative that does not depend on gradients: a derivative is linear in the upstream gradients.
#pragma once

#include "csrc/autodiff/stages.h"

#include <vector>

namespace spikeforge::autodiff {

// Nodes of stages.backward that depend on inputs and states but on no gradient, and that nodes which depend on
// gradients read: with these and the hoisted values, the rest of the derivative needs neither inputs nor states. In
// ascending order.
std::vector<graph::Id> coefficients(const Stages& stages);

}  // namespace spikeforge::autodiff
