#include "csrc/graph/synapse_parts.h"
#include "csrc/graph/internal/copy.h"

#include <span>
#include <vector>

namespace spikeforge::graph {
namespace {

enum class Takes : std::uint8_t { states, traces, all };

// Returns the part of a block that changes states or traces, and sends. Other traces of the same neuron keep their
// values.
SynapseBlock chosen(const Synapse& synapse, const SynapseBlock& block, bool after, Takes takes) {
  const std::span<const Id> results = block.graph.results();
  std::vector<Id> wanted;
  SynapseBlock made{.graph = Graph(), .states = {}, .traces = {}};
  if (takes != Takes::traces) {
    made.states = block.states;
    wanted.assign(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(block.states.size()));
  }
  for (std::size_t i = 0; i < synapse.traces.size(); ++i) {
    if (synapse.traces[i].after != after) continue;
    Id next = static_cast<Id>(synapse.states.size() + i);
    if (takes != Takes::states)
      for (std::size_t k = 0; k < block.traces.size(); ++k)
        if (block.traces[k] == i) next = results[block.states.size() + k];
    made.traces.push_back(i);
    wanted.push_back(next);
  }
  if (block.sends) {
    made.sends_by_itself = block.sends_by_itself || takes == Takes::traces;
    made.sends = true;
    wanted.push_back(made.sends_by_itself ? Id{0} : results.back());
  }
  made.graph = restricted(block.graph, block.graph.argument_count(), wanted);
  return made;
}

// Returns a block without statements.
SynapseBlock idle(const Synapse& synapse, bool after) {
  SynapseBlock block{.graph = restricted(synapse.pre.graph, synapse.pre.graph.argument_count(), {}),
                     .states = {},
                     .traces = {},
                     .sends = !after,
                     .sends_by_itself = !after};
  if (!after) block.graph.add_result(0);
  return chosen(synapse, block, after, Takes::states);
}

}  // namespace

SynapseParts parts_of(const Synapse& s) {
  Synapse header;
  header.name = s.name;
  header.states = s.states;
  header.traces = s.traces;
  header.params = s.params;
  header.signals = s.signals;
  header.on_signal.resize(s.signals.size());
  SynapseParts parts{header, header, header};
  parts.before.pre = chosen(s, s.pre, false, Takes::traces);
  parts.arrival.pre = chosen(s, s.pre, false, Takes::states);
  parts.after.pre = idle(s, false);
  if (s.post) {
    parts.before.post = parts.arrival.post = idle(s, true);
    parts.after.post = chosen(s, *s.post, true, Takes::all);
  }
  parts.after.on_signal = s.on_signal;
  parts.after.each_step = s.each_step;
  for (const Decay& decay : s.decays) {
    if (!decay.of_trace) parts.after.decays.push_back(decay);
    if (!decay.of_trace || s.traces[decay.number].after) parts.arrival.decays.push_back(decay);
  }
  return parts;
}

}  // namespace spikeforge::graph
