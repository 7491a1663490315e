// Surrogates in plain arithmetic, to be differentiated: the structs of neuron/surrogate.h, with Values as their
// numbers.
#pragma once

#include "csrc/graph/surrogate.h"
#include "csrc/graph/value.h"

namespace spikeforge::graph {

// The derivative at u, with the value of surrogate_gradient(u, surrogate) within rounding; 0 for none.
Value surrogate_derivative(const Value& u, const Surrogate& surrogate);

// Its integral, which replaces the step function if spiking=False.
Value surrogate_primitive(const Value& u, const Surrogate& surrogate);

}  // namespace spikeforge::graph
