// Decides if the first output of a neuron is a spike.
#pragma once

#include "csrc/graph/cell.h"

#include <string>

namespace spikeforge::simulation {

// A neuron fires when its first output is above 0, and all its spikes are equal. Throws ValueError for a neuron whose
// first output is known to have other values: a level such as 0.25, or a continuous function of a state that
// integrates, such as a membrane potential. A function of inputs alone is accepted, and so is all that is not known.
void check_spike_output(const std::string& population, const graph::Cell& cell);

}  // namespace spikeforge::simulation
