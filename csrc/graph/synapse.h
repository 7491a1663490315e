// A rule by which the weights of connections change: the update of a connection and of the traces of its neurons at a
// presynaptic spike, at a postsynaptic spike, in each step, and at a signal. docs/plasticity.md defines a step.
//
//   synapse    = "synapse" name "(" states [";" [states] [";" [names] [";" [names]]]] ")" "{" {part} "}"
//                                                            states of a connection, of which the first is its weight;
//                                                            traces; parameters; signals
//   part       = "on" ("pre" | "post" | name) block          the name is a signal's
//              | "each" "step" block
//              | "decay" name "by" expression ["to" expression]      of parameters; a state's or a trace's name
//   block      = "{" {statement} "}"
//   statement  = name "=" expression | name "'" "=" expression
//              | "send" expression                           in "on pre" alone, once: the input of the target
//
// The rest is as in neuron text (text.h). A trace belongs to the presynaptic neurons if "on pre" changes it, to the
// postsynaptic ones if "on post" does; its next value depends on traces of the same neuron and on parameters.
#pragma once

#include "csrc/base/export.h"
#include "csrc/graph/cell.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spikeforge::graph {

struct Trace {
  std::string name;
  double initial = 0;
  bool after = false;  // true for neurons after the connection, false for those before it
};

// The update at an event. Arguments: states, traces, parameters, signals.
struct SynapseBlock {
  Graph graph;                      // results: next values of `states`, of `traces`, then the sent value
  std::vector<std::size_t> states;  // indices of the states that change
  std::vector<std::size_t> traces;  // indices of the traces that change: those of the neuron that fired
  bool sends = false;
  bool sends_by_itself = false;  // without "send" in the text: sends the first state's value before the update
};

// A value becomes target + (value - target) exp(-1 / tau) in a step. The arguments of the graph are the parameters, its
// results are tau and target.
struct Decay {
  bool of_trace = false;
  std::size_t number = 0;  // the index of the state or the trace
  Graph graph;
};

struct Synapse {
  std::string name;
  std::vector<State> states;  // at least one
  std::vector<Trace> traces;
  std::vector<std::string> params, signals;
  SynapseBlock pre;  // present in every synapse; it sends
  std::optional<SynapseBlock> post, each_step;
  std::vector<std::optional<SynapseBlock>> on_signal;  // one for each signal
  std::vector<Decay> decays;

  // True if a state of the connections decays, so that each stores the step of its last update.
  bool states_decay() const {
    return std::ranges::any_of(decays, [](const Decay& decay) { return !decay.of_trace; });
  }
  std::size_t param(std::size_t i) const { return states.size() + traces.size() + i; }  // its index in a block
  std::size_t signal(std::size_t i) const { return param(params.size()) + i; }
};

// Parses a synapse. Throws TextError.
SPIKEFORGE_API Synapse parse_synapse(std::string_view text);
// print -> parse -> print is the identity.
SPIKEFORGE_API std::string print(const Synapse& synapse);

}  // namespace spikeforge::graph
