// Surrogates in plain arithmetic, to be differentiated: the structs of neuron/surrogate.h, instantiated with Values.
#pragma once

#include "csrc/graph/surrogate.h"
#include "csrc/graph/value.h"

namespace spikeforge::graph {

// Returns the derivative at u, which equals surrogate_gradient(u, surrogate) up to rounding; 0 for the surrogate
// "none".
Value surrogate_derivative(const Value& u, const Surrogate& surrogate);

// Returns the integral of the derivative, which replaces the step function if spiking=False.
Value surrogate_primitive(const Value& u, const Surrogate& surrogate);

}  // namespace spikeforge::graph
