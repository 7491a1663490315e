#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/parser.h"
#include "csrc/graph/synapse.h"
#include "csrc/graph/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace spikeforge::graph {
namespace {

enum class Event : std::uint8_t { pre, post, step, signal };

// A value and the name that it is assigned to.
struct Next {
  Token name;
  Id value;
};

class SynapseParser : Parser {
 public:
  using Parser::Parser;

  Synapse synapse();

 private:
  void header();
  bool part();  // returns true if it ends with a brace
  void on();
  void each();
  void decay();

  void block(Event event, std::optional<SynapseBlock>& block, const Token& keyword);
  void declare_arguments(Graph& graph, bool params_alone);
  void statement(Event event);
  void next_value(Event event, const Token& name);
  void send(Event event, const Token& keyword);
  void check_traces(const Token& end) const;

  template <class List> static std::optional<std::size_t> find(const List& list, std::string_view name) {
    const auto found = std::ranges::find(list, name, [](const auto& item) -> std::string_view {
      if constexpr (requires { item.name; })
        return item.name;
      else
        return item;
    });
    if (found == list.end()) return std::nullopt;
    return static_cast<std::size_t>(found - list.begin());
  }

  Synapse made_;
  std::optional<SynapseBlock> pre_;
  std::vector<std::optional<Token>> changed_;  // the first assignment to each trace
  // The next values of the current block.
  std::vector<std::optional<Next>> states_, traces_;
  std::optional<Next> sent_;
};

Synapse SynapseParser::synapse() {
  skip_line_breaks();
  expect("synapse", "at the beginning");
  header();
  changed_.resize(made_.traces.size());
  made_.on_signal.resize(made_.signals.size());
  skip_line_breaks();
  expect("{", "before the rule");
  const Token end = statements([&] { return part(); });
  end_of_text("synapse");
  if (!pre_) {
    pre_.emplace();
    declare_arguments(pre_->graph, false);
  }
  made_.pre = std::move(*pre_);
  if (!made_.pre.sends) {
    made_.pre.sends = made_.pre.sends_by_itself = true;
    made_.pre.graph.add_result(0);
  }
  check_traces(end);
  return std::move(made_);
}

void SynapseParser::header() {
  std::set<std::string_view> seen;
  const std::string bound =
      fmt::format("a synapse has at most {} states, traces, parameters and signals together", most_arguments);
  const auto initial = [&] { return take_if("=") ? constant() : 0; };
  const Token name = expect_name("the synapse's name");
  made_.name = std::string(name.text);
  expect("(", "after the synapse's name");
  const Token first = token_;
  names("a state's name", bound, seen,
        [&](const Token& name) { made_.states.emplace_back(std::string(name.text), initial()); });
  if (made_.states.empty()) fail(first, "a synapse has at least one state, its weight");
  if (take_if(";"))
    names("a trace's name", bound, seen, [&](const Token& name) {
      made_.traces.push_back({std::string(name.text), initial(), false});
    });
  if (take_if(";"))
    names("a parameter's name", bound, seen, [&](const Token& name) { made_.params.emplace_back(name.text); });
  if (take_if(";"))
    names("a signal's name", bound, seen, [&](const Token& name) {
      if (name.text == "pre" || name.text == "post")
        fail(name, fmt::format("a signal cannot be called {}: that is a spike", quoted(name)));
      made_.signals.emplace_back(name.text);
    });
  expect(")", "or \",\" or \";\" after the arguments");
}

bool SynapseParser::part() {
  if (take_if("on")) {
    on();
    return true;
  }
  if (take_if("each")) {
    each();
    return true;
  }
  if (take_if("decay")) {
    decay();
    return false;
  }
  fail(token_,
       fmt::format("expected on pre {{ ... }}, on post {{ ... }}, each step {{ ... }} or decay name by tau, but "
                   "found {}",
                   quoted(token_)));
}

void SynapseParser::on() {
  const Token event = expect_name("pre, post or a signal");
  if (event.text == "pre") return block(Event::pre, pre_, event);
  if (event.text == "post") return block(Event::post, made_.post, event);
  const auto signal = find(made_.signals, event.text);
  if (!signal)
    fail(event, fmt::format("{} is not an event: write on pre, on post, or on and a signal's name", quoted(event)));
  block(Event::signal, made_.on_signal[*signal], event);
}

void SynapseParser::each() {
  const Token keyword = token_;
  expect("step", "after each");
  block(Event::step, made_.each_step, keyword);
}

// Declares the arguments, which have the same indices in all blocks.
void SynapseParser::declare_arguments(Graph& graph, bool params_alone) {
  scope_.clear();
  graph_ = &graph;
  const auto declare = [&](const std::string& name) { scope_.emplace(name, graph.argument(name)); };
  if (!params_alone) {
    for (const State& state : made_.states) declare(state.name);
    for (const Trace& trace : made_.traces) declare(trace.name);
  }
  for (const std::string& param : made_.params) declare(param);
  if (params_alone) return;
  for (const std::string& signal : made_.signals) declare(signal);
}

void SynapseParser::block(Event event, std::optional<SynapseBlock>& block, const Token& keyword) {
  if (block) fail(keyword, "each event may occur once in a synapse");
  block.emplace(SynapseBlock{.graph = Graph(most_nodes), .states = {}, .traces = {}});
  declare_arguments(block->graph, false);
  states_.assign(made_.states.size(), std::nullopt);
  traces_.assign(made_.traces.size(), std::nullopt);
  sent_.reset();
  skip_line_breaks();
  expect("{", "before what happens");
  statements([&] { statement(event); });
  const auto add = [&](const Next& next, std::string_view what) {
    if (block->graph.kind(next.value) != Kind::number)
      fail(next.name, fmt::format("{} is a number, not a boolean; write where(condition, 1, 0)", what));
    block->graph.add_result(next.value);
  };
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (states_[i]) {
      add(*states_[i], "a state");
      block->states.push_back(i);
    }
  for (std::size_t i = 0; i < traces_.size(); ++i)
    if (traces_[i]) {
      add(*traces_[i], "a trace");
      block->traces.push_back(i);
    }
  if (sent_) add(*sent_, "what is sent");
  block->sends = sent_.has_value();
  if (draws(block->graph)) fail(keyword, "a synapse draws no random numbers");
}

void SynapseParser::statement(Event event) {
  const Token name = expect_name("a statement: name = ..., state' = ... or send ...");
  if (take_if("'")) return next_value(event, name);
  if (name.text == "send" && !sees("=")) return send(event, name);
  assignment(name);
}

void SynapseParser::next_value(Event event, const Token& name) {
  const auto take = [&](std::optional<Next>& next) {
    if (next) fail(name, fmt::format("{}' has a value already", name.text));
    expect("=", "after the name");
    next = Next{name, expression()};
  };
  if (const auto state = find(made_.states, name.text)) return take(states_[*state]);
  const auto trace = find(made_.traces, name.text);
  if (!trace) fail(name, fmt::format("{} is not a state or trace and has no next value", quoted(name)));
  if (event != Event::pre && event != Event::post)
    fail(name, fmt::format("{} is a trace, which only on pre, on post and decay can change", quoted(name)));
  Trace& changed = made_.traces[*trace];
  const bool after = event == Event::post;
  if (changed_[*trace] && changed.after != after)
    fail(name, fmt::format("{} is changed in on pre already, and so is of the neurons before: a trace is of one side",
                           quoted(name)));
  changed.after = after;
  if (!changed_[*trace]) changed_[*trace] = name;
  take(traces_[*trace]);
}

void SynapseParser::send(Event event, const Token& keyword) {
  if (event != Event::pre) fail(keyword, "send is legal in on pre only: it sends a presynaptic spike");
  if (sent_) fail(keyword, "send may occur once");
  sent_ = Next{keyword, expression()};
}

void SynapseParser::decay() {
  const Token name = expect_name("a state's or a trace's name");
  const auto state = find(made_.states, name.text), trace = find(made_.traces, name.text);
  if (!state && !trace) fail(name, fmt::format("{} is not a state or trace and cannot decay", quoted(name)));
  Decay decay{.of_trace = trace.has_value(), .number = trace ? *trace : *state, .graph = Graph(most_nodes)};
  for (const Decay& other : made_.decays)
    if (other.of_trace == decay.of_trace && other.number == decay.number)
      fail(name, fmt::format("{} decays already", quoted(name)));
  expect("by", "and a time constant, in steps");
  declare_arguments(decay.graph, true);
  const auto add = [&](Id value) {
    if (decay.graph.kind(value) != Kind::number)
      fail(name, "the time constant and the target of a decay must be numbers, not booleans");
    decay.graph.add_result(value);
  };
  add(expression());
  add(take_if("to") ? expression() : decay.graph.constant(0));
  if (draws(decay.graph)) fail(name, "a synapse draws no random numbers");
  made_.decays.push_back(std::move(decay));
}

// Runs after the whole text is parsed: only then is the neuron of each trace known.
void SynapseParser::check_traces(const Token& end) const {
  for (std::size_t i = 0; i < changed_.size(); ++i)
    if (!changed_[i])
      fail(end,
           fmt::format("trace {0} changes at no spike: write {0}' = ... in on pre or in on post, which also determines "
                       "its neuron",
                       made_.traces[i].name));
  const auto check = [&](const SynapseBlock& block) {
    const Dependence depends(block.graph);
    for (std::size_t k = 0; k < block.traces.size(); ++k) {
      const std::size_t trace = block.traces[k];
      const Id value = block.graph.results()[block.states.size() + k];
      for (std::size_t argument = 0; argument < block.graph.argument_count(); ++argument) {
        const bool is_trace = argument >= made_.states.size() && argument < made_.param(0);
        const bool is_own = is_trace && made_.traces[argument - made_.states.size()].after == made_.traces[trace].after;
        const bool is_param = argument >= made_.param(0) && argument < made_.signal(0);
        if (!is_own && !is_param && depends.on(value, argument))
          fail(*changed_[trace],
               fmt::format("{} is a trace of a neuron, which sees traces of the same neuron and parameters, but no {}",
                           quoted(*changed_[trace]), block.graph.name(static_cast<Id>(argument))));
      }
    }
  };
  check(made_.pre);
  if (made_.post) check(*made_.post);
}

}  // namespace

Synapse parse_synapse(std::string_view text) {
  if (text.size() > most_text)
    throw TextError(fmt::format("a synapse text has at most {} bytes, and this one has more", most_text), 1, 1);
  return SynapseParser(text).synapse();
}

}  // namespace spikeforge::graph
