// Traces C++ lambdas, one for each event, to a rule of synapse.h.
//
//   const Synapse stdp = trace_synapse(
//       {.name = "stdp", .states = {"w"}, .traces = {"x", "y"}, .params = {"a_plus", "a_minus", "tau"}},
//       {.on_pre =
//            [](SynapseEvent& at) {
//              at.next("w", clamp(at["w"] - at["a_minus"] * at["y"], 0, 1));
//              at.next("x", at["x"] + 1);
//            },
//        .on_post =
//            [](SynapseEvent& at) {
//              at.next("w", clamp(at["w"] + at["a_plus"] * at["x"], 0, 1));
//              at.next("y", at["y"] + 1);
//            },
//        .decays = {{"x", "tau"}, {"y", "tau"}}});
//
// Each lambda is called once. print(stdp) is the text that operators and networks accept.
#pragma once

#include "csrc/graph/synapse.h"
#include "csrc/graph/value.h"

#include <concepts>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spikeforge::graph {

struct SynapseSignature {
  std::string name;
  std::vector<State> states;  // of a connection; the first is its weight
  std::vector<State> traces = {};
  std::vector<std::string> params = {}, signals = {};
};

// The values at an event, and their updates. A name is that of a state, a trace, a parameter or a signal.
class SPIKEFORGE_API SynapseEvent {
 public:
  // Returns the value before the event. Throws GraphError for an unknown name.
  Value operator[](std::string_view name) const;
  // Sets the next value of a state or a trace, at most once. Throws GraphError.
  void next(std::string_view name, const Value& value);
  // Sets the value that a presynaptic spike sends, at most once, in on_pre only. Throws GraphError.
  void send(const Value& value);

 private:
  friend class SynapseTracer;
  explicit SynapseEvent(const Recording& recording) : recording_(recording) {}

  const Recording& recording_;
  std::vector<std::pair<std::string, Id>> next_;
  std::vector<Id> sent_;  // at most one
};

using OnSynapseEvent = std::function<void(SynapseEvent&)>;

// A value that depends only on parameters: a constant, the name of a parameter, or a function that reads parameters
// from its event.
class SPIKEFORGE_API OfParams {
 public:
  OfParams(double number);      // NOLINT(google-explicit-constructor)
  OfParams(const char* param);  // NOLINT(google-explicit-constructor)
  template <std::invocable<const SynapseEvent&> Lambda>
  OfParams(Lambda lambda) : value_(std::move(lambda)) {}  // NOLINT(google-explicit-constructor)

  Value operator()(const SynapseEvent& event) const { return value_(event); }

 private:
  std::function<Value(const SynapseEvent&)> value_;
};

// In each step, a state or trace z becomes to + (z - to) exp(-1 / by).
struct TracedDecay {
  std::string name;
  OfParams by;
  OfParams to = 0.0;
};

// Events that are not given have no effect.
struct SynapseEvents {
  OnSynapseEvent on_pre = {}, on_post = {};
  std::map<std::string, OnSynapseEvent> on_signal = {};
  OnSynapseEvent each_step = {};
  std::vector<TracedDecay> decays = {};
};

// Traces a rule. Throws GraphError for an invalid rule. Errors of operations in a lambda are passed on.
SPIKEFORGE_API Synapse trace_synapse(const SynapseSignature& signature, const SynapseEvents& events);

}  // namespace spikeforge::graph
