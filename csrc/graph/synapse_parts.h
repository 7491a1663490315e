// Splits a step of a rule into parts. In networks, spikes of the neuron before a connection arrive later than those of
// the neuron after it, by the connection's delay.
#pragma once

#include "csrc/graph/synapse.h"

namespace spikeforge::graph {

// Rules with the header of the whole rule. Traces that do not change in a part keep their values.
struct SynapseParts {
  Synapse before;   // traces of the neurons before change at their spikes; they decay in no part
  Synapse arrival;  // traces of the neurons after decay; then spikes before arrive at connections, and send
  Synapse after;    // updates at spikes of neurons after; then at signals, and in each step
};

SPIKEFORGE_API SynapseParts parts_of(const Synapse& synapse);

}  // namespace spikeforge::graph
