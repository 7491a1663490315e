#include "csrc/graph/trace_synapse.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"

#include <fmt/format.h>

#include <algorithm>

namespace spikeforge::graph {
namespace {

template <class List> std::size_t place_of(const List& list, std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(list, name, &List::value_type::name) - list.begin());
}

void check(std::string_view what, std::string_view name) {
  if (!is_name(name))
    throw GraphError(
        fmt::format("\"{}\" cannot name {}: a name is a letter or _, then letters, digits and _, at most "
                    "{} of them, and no reserved word",
                    name, what, most_name_length));
}

}  // namespace

Value SynapseEvent::operator[](std::string_view name) const {
  const Graph& graph = recording_.graph();
  for (Id id = 0; id < graph.argument_count(); ++id)
    if (graph.name(id) == name) return recording_.value(id);
  throw GraphError(fmt::format("nothing is called \"{}\" there", name));
}

void SynapseEvent::next(std::string_view name, const Value& value) {
  if (std::ranges::find(next_, name, &std::pair<std::string, Id>::first) != next_.end())
    throw GraphError(fmt::format("{}' has a value already", name));
  next_.emplace_back(name, recording_.id(value, "next"));
}

void SynapseEvent::send(const Value& value) {
  if (!sent_.empty()) throw GraphError("send may occur once");
  sent_.push_back(recording_.id(value, "send"));
}

OfParams::OfParams(double number) : value_([number](const SynapseEvent&) { return Value(number); }) {}
OfParams::OfParams(const char* param) : value_([param](const SynapseEvent& event) { return event[param]; }) {}

// Records a rule without checks: its text is parsed again, which checks it.
class SynapseTracer {
 public:
  SynapseTracer(const SynapseSignature& signature, const SynapseEvents& events) : events_(events) {
    made_.name = signature.name;
    made_.states = signature.states;
    for (const State& trace : signature.traces) made_.traces.push_back({trace.name, trace.initial});
    made_.params = signature.params;
    made_.signals = signature.signals;
    made_.on_signal.resize(made_.signals.size());
    check("a synapse", made_.name);
    for (const State& state : made_.states) check("a state", state.name);
    for (const Trace& trace : made_.traces) check("a trace", trace.name);
    for (const std::string& param : made_.params) check("a parameter", param);
    for (const std::string& signal : made_.signals) check("a signal", signal);
  }

  Synapse synapse() {
    made_.pre = events_.on_pre ? block(events_.on_pre, "on pre")
                               : SynapseBlock{.graph = arguments(false), .states = {}, .traces = {}};
    if (!made_.pre.sends) {
      made_.pre.sends = made_.pre.sends_by_itself = true;
      made_.pre.graph.add_result(0);
    }
    if (events_.on_post) made_.post = block(events_.on_post, "on post");
    for (const auto& [signal, event] : events_.on_signal) {
      const auto found = std::ranges::find(made_.signals, signal);
      if (found == made_.signals.end()) throw GraphError(fmt::format("{} is not a signal", signal));
      made_.on_signal[static_cast<std::size_t>(found - made_.signals.begin())] = block(event, "on " + signal);
    }
    if (events_.each_step) made_.each_step = block(events_.each_step, "each step");
    for (const TracedDecay& decay : events_.decays) add(decay);
    return parse_synapse(print(made_));
  }

 private:
  // Returns a graph with the arguments that the parser creates.
  Graph arguments(bool params_alone) const {
    Graph graph(most_nodes);
    if (!params_alone) {
      for (const State& state : made_.states) graph.argument(state.name);
      for (const Trace& trace : made_.traces) graph.argument(trace.name);
    }
    for (const std::string& param : made_.params) graph.argument(param);
    if (!params_alone)
      for (const std::string& signal : made_.signals) graph.argument(signal);
    return graph;
  }

  SynapseBlock block(const OnSynapseEvent& event, const std::string& what) const {
    Graph graph = arguments(false);
    const Recording recording(graph);
    SynapseEvent happens(recording);
    event(happens);
    SynapseBlock block{.graph = Graph(), .states = {}, .traces = {}};
    const auto take = [&](const auto& list, std::vector<std::size_t>& changed) {
      for (std::size_t i = 0; i < list.size(); ++i)
        for (const auto& [name, value] : happens.next_)
          if (name == list[i].name) {
            changed.push_back(i);
            graph.add_result(value);
          }
    };
    take(made_.states, block.states);
    take(made_.traces, block.traces);
    for (const auto& [name, value] : happens.next_)
      if (place_of(made_.states, name) == made_.states.size() && place_of(made_.traces, name) == made_.traces.size())
        throw GraphError(fmt::format("{}: {} is not a state or trace and has no next value", what, name));
    for (const Id sent : happens.sent_) graph.add_result(sent);
    block.sends = !happens.sent_.empty();
    block.graph = in_order_of_need(graph);
    return block;
  }

  void add(const TracedDecay& decay) {
    const std::size_t state = place_of(made_.states, decay.name), trace = place_of(made_.traces, decay.name);
    const bool of_trace = trace < made_.traces.size();
    if (!of_trace && state == made_.states.size())
      throw GraphError(fmt::format("{} is not a state or trace and cannot decay", decay.name));
    Graph graph = arguments(true);
    const Recording recording(graph);
    const SynapseEvent given(recording);
    const Id by = recording.id(decay.by(given), "decay"), to = recording.id(decay.to(given), "decay");
    graph.add_result(by);
    graph.add_result(to);
    made_.decays.push_back({of_trace, of_trace ? trace : state, in_order_of_need(graph)});
  }

  const SynapseEvents& events_;
  Synapse made_;
};

Synapse trace_synapse(const SynapseSignature& signature, const SynapseEvents& events) {
  try {
    return SynapseTracer(signature, events).synapse();
  } catch (const GraphError& error) {
    throw GraphError(fmt::format("synapse {}: {}", signature.name, error.what()));
  }
}

}  // namespace spikeforge::graph
