// The update of a connection, or of a neuron's traces, as C++: a struct that the loops of cuda/event/plastic.cuh run.
//
//   template <class F> struct Block
//     n_states, n_traces, n_params, n_signals        of the rule
//     reads_, changes_, decaying, traces_after       a bit for each state, trace or signal
//     run(states, traces, params, signals, sent)     changes its arguments
#pragma once

#include "csrc/graph/synapse.h"

#include <string>

namespace spikeforge::codegen {

// The states and what is sent of a block, or its traces; null: states decay alone. In namespace spikeforge, which the
// text opens and closes; its #include comes first.
std::string print_block(const graph::Synapse& synapse, const graph::SynapseBlock* block, bool of_traces, bool sends);

}  // namespace spikeforge::codegen
