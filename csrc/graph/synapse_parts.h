// A step of a rule in parts, where neurons before a connection are seen later than those after it: in networks, by the
// connection's delay.
#pragma once

#include "csrc/graph/synapse.h"

namespace spikeforge::graph {

// Rules with the header of the whole one. Traces that do not change in a part become what they are.
struct SynapseParts {
  Synapse before;   // traces of the neurons before change at their spikes; they decay in no part
  Synapse arrival;  // traces of the neurons after decay; then spikes before reach their connections, and send
  Synapse after;    // neurons after fire; then signals, and each step
};

SPIKEFORGE_API SynapseParts parts_of(const Synapse& synapse);

}  // namespace spikeforge::graph
