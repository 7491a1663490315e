// What of a step's derivative is known before any gradient is: a derivative is linear in the gradients that come in.
#pragma once

#include "csrc/autodiff/stages.h"

#include <vector>

namespace spikeforge::autodiff {

// Nodes of stages.backward that are made of inputs and states, but of no gradient, and that what is made of gradients
// reads: with these and what is hoisted, the rest of the derivative needs neither inputs nor states. In order of their
// numbers.
std::vector<graph::Id> coefficients(const Stages& stages);

}  // namespace spikeforge::autodiff
