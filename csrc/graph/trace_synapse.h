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
// Each lambda is called once. print(stdp) is the text that operators and networks take.
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
  std::vector<State> states;  // of a connection, the first is its weight
  std::vector<State> traces = {};
  std::vector<std::string> params = {}, signals = {};
};

// The values at an event, and their updates. A name is that of a state, a trace, a parameter or a signal.
class SPIKEFORGE_API SynapseEvent {
 public:
  // The value before the event. Throws GraphError for a name that is not there.
  Value operator[](std::string_view name) const;
  // The next value of a state or a trace, once. Throws GraphError.
  void next(std::string_view name, const Value& value);
  // Sends the value of a presynaptic spike, once, in on_pre. Throws GraphError.
  void send(const Value& value);

 private:
  friend class SynapseTracer;
  explicit SynapseEvent(const Recording& recording) : recording_(recording) {}

  const Recording& recording_;
  std::vector<std::pair<std::string, Id>> next_;
  std::vector<Id> sent_;  // at most one
};

using OnSynapseEvent = std::function<void(SynapseEvent&)>;

// A number that depends on parameters only: a constant, a parameter, or a function of those in the event.
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

// In a step the state or trace becomes to + (it - to) exp(-1 / by).
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

// Throws GraphError for what is no rule, and whatever an operation in a lambda throws.
SPIKEFORGE_API Synapse trace_synapse(const SynapseSignature& signature, const SynapseEvents& events);

}  // namespace spikeforge::graph
