#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/number_text.h"
#include "csrc/graph/synapse.h"
#include "csrc/graph/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace spikeforge::graph {
namespace {

constexpr std::size_t longest_inline = 72;

// The precedence of an expression's outermost operator. ops.def defines the precedence of infix operators, from 1.
constexpr int binds_prefix = 90;
constexpr int binds_primary = 100;

struct Expression {
  std::string text;
  int binds = binds_primary;
};

std::string within(const Expression& e, int at_least) {
  return e.binds >= at_least ? e.text : fmt::format("({})", e.text);
}

// Prints the nodes of a graph as statements, and each result as an expression.
class Body {
 public:
  // `no_statements`: everything is printed within the results, for contexts that have no statements.
  explicit Body(const Graph& graph, bool no_statements = false)
      : graph_(graph), no_statements_(no_statements), expressions_(graph.size()), uses_(graph.size()) {
    const std::vector<bool> live = live_nodes(graph);
    for (Id id = 0; id < graph.size(); ++id) {
      if (!graph.name(id).empty()) names_.insert(graph.name(id));
      if (!live[id]) continue;
      for (const Id operand : graph.operands(id)) ++uses_[operand];
      draws_ += is_draw(graph[id].op);
    }
    for (const Id result : graph.results()) ++uses_[result];
    for (Id id = 0; id < graph.size(); ++id)
      if (live[id] || id < graph.argument_count()) write(id);
  }

  const std::string& statements() const { return statements_; }
  const std::string& operator[](Id id) const { return expressions_[id].text; }

 private:
  void write(Id id) {
    const Node& node = graph_[id];
    if (node.op == Op::argument) {
      expressions_[id] = {graph_.name(id)};
      return;
    }
    expressions_[id] = expression(id);
    if (info(node.op).form == Form::leaf || no_statements_) return;
    // Draws are numbered in the order of the text, so each of several draws is printed as a separate statement.
    const bool may_be_inline = !is_draw(node.op) || draws_ == 1;
    if (graph_.name(id).empty() && uses_[id] == 1 && may_be_inline && expressions_[id].text.size() <= longest_inline)
      return;
    const std::string name = graph_.name(id).empty() ? new_name() : graph_.name(id);
    statements_ += fmt::format("  {} = {}\n", name, expressions_[id].text);
    expressions_[id] = {name};
  }

  Expression expression(Id id) {
    const Node& node = graph_[id];
    const OpInfo& known = info(node.op);
    const auto operand = [&](std::size_t i) -> const Expression& { return expressions_[node.operands[i]]; };
    switch (known.form) {
      case Form::leaf: return leaf(node);
      case Form::prefix:
        return {fmt::format("{}{}{}", known.text, known.text == "-" ? "" : " ", within(operand(0), binds_prefix)),
                binds_prefix};
      case Form::infix: {
        // Comparisons cannot be chained; the other operators are left-associative.
        const int left = known.result != known.operands[0] ? known.precedence + 1 : known.precedence;
        return {fmt::format("{} {} {}", within(operand(0), left), known.text, within(operand(1), known.precedence + 1)),
                known.precedence};
      }
      case Form::call:
      case Form::spike:
      case Form::draw: break;
    }
    std::vector<std::string_view> operands;
    for (const Id x : graph_.operands(id)) operands.push_back(expressions_[x].text);
    const std::string surrogate = known.form == Form::spike ? ", " + text_of(node.surrogate) : "";
    const std::string call = fmt::format("{}({}{})", known.text, fmt::join(operands, ", "), surrogate);
    return {known.form == Form::draw ? draw(node, call) : call};
  }

  // Prints a draw, with its number unless that is the next number.
  std::string draw(const Node& node, const std::string& call) {
    const bool is_next = node.draw.number == next_draw_;
    next_draw_ = std::max(next_draw_, node.draw.number + info(node.op).words);
    if (is_next) return node.draw.once ? fmt::format("draw_once({})", call) : call;
    return fmt::format("{}({}, {})", node.draw.once ? "draw_once" : "draw", call, node.draw.number);
  }

  static Expression leaf(const Node& node) {
    if (node.op == Op::truth) return {node.number != 0 ? "true" : "false"};
    const std::string number = graph::text_of(node.number);
    return {number, number[0] == '-' ? binds_prefix : binds_primary};
  }

  std::string new_name() {
    std::string name;
    do name = fmt::format("t{}", ++count_);
    while (!names_.insert(name).second);
    return name;
  }

  const Graph& graph_;
  const bool no_statements_;
  std::vector<Expression> expressions_;
  std::vector<int> uses_;
  std::set<std::string, std::less<>> names_;
  std::string statements_;
  int count_ = 0;
  int draws_ = 0;
  std::uint32_t next_draw_ = 0;
};

// Prints a state or a trace of a header.
std::string declared(const std::string& name, double number) {
  const std::string initial = text_of(number);
  return initial == "0" ? name : fmt::format("{} = {}", name, initial);
}

std::string header(const Signature& signature) {
  std::vector<std::string> states;
  for (const State& state : signature.states) states.push_back(declared(state.name, state.initial));
  std::string text = fmt::format("neuron {}({}", signature.name, fmt::join(signature.inputs, ", "));
  if (!states.empty() || !signature.params.empty()) text += ";";
  if (!states.empty()) text += fmt::format(" {}", fmt::join(states, ", "));
  if (!signature.params.empty()) text += fmt::format("; {}", fmt::join(signature.params, ", "));
  return text + ") {\n";
}

std::string header(const Synapse& synapse) {
  std::vector<std::string> states, traces;
  for (const State& state : synapse.states) states.push_back(declared(state.name, state.initial));
  for (const Trace& trace : synapse.traces) traces.push_back(declared(trace.name, trace.initial));
  const std::string lists[] = {fmt::format("{}", fmt::join(states, ", ")), fmt::format("{}", fmt::join(traces, ", ")),
                               fmt::format("{}", fmt::join(synapse.params, ", ")),
                               fmt::format("{}", fmt::join(synapse.signals, ", "))};
  std::string text = fmt::format("synapse {}({}", synapse.name, lists[0]);
  for (std::size_t i = 1, last = 4; i < last; ++i) {
    while (last > i && lists[last - 1].empty()) --last;
    if (i < last) text += lists[i].empty() ? ";" : "; " + lists[i];
  }
  return text + ") {\n";
}

std::string printed(const Synapse& synapse, std::string_view event, const SynapseBlock& block) {
  const Body body(block.graph);
  std::string lines = body.statements();
  const std::span<const Id> results = block.graph.results();
  std::size_t next = 0;
  for (const std::size_t i : block.states)
    lines += fmt::format("  {}' = {}\n", synapse.states[i].name, body[results[next++]]);
  for (const std::size_t i : block.traces)
    lines += fmt::format("  {}' = {}\n", synapse.traces[i].name, body[results[next++]]);
  if (block.sends && !block.sends_by_itself) lines += fmt::format("  send {}\n", body[results[next]]);
  std::string text = fmt::format("  {} {{\n", event);
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin) + 1;
    text += "  " + lines.substr(begin, end - begin);
    begin = end;
  }
  return text + "  }\n";
}

std::string printed(const Synapse& synapse, const Decay& decay) {
  const Body body(decay.graph, /*no_statements=*/true);
  const std::string& name = decay.of_trace ? synapse.traces[decay.number].name : synapse.states[decay.number].name;
  const std::string target = body[decay.graph.results()[1]];
  return fmt::format("  decay {} by {}{}\n", name, body[decay.graph.results()[0]],
                     target == "0" ? "" : " to " + target);
}

}  // namespace

std::string print(const Synapse& synapse) {
  std::string text = header(synapse);
  const bool is_silent = synapse.pre.sends_by_itself && synapse.pre.states.empty() && synapse.pre.traces.empty();
  if (!is_silent) text += printed(synapse, "on pre", synapse.pre);
  if (synapse.post) text += printed(synapse, "on post", *synapse.post);
  for (std::size_t i = 0; i < synapse.signals.size(); ++i)
    if (synapse.on_signal[i]) text += printed(synapse, "on " + synapse.signals[i], *synapse.on_signal[i]);
  if (synapse.each_step) text += printed(synapse, "each step", *synapse.each_step);
  for (const Decay& decay : synapse.decays) text += printed(synapse, decay);
  return text + "}\n";
}

std::string print(const Cell& cell) {
  const Body body(cell.graph());
  std::string text = header(cell.signature()) + body.statements() + "  return ";
  for (std::size_t i = 0; i < cell.output_count(); ++i) text += (i == 0 ? "" : ", ") + body[cell.output(i)];
  text += "\n";
  for (std::size_t i = 0; i < cell.state_count(); ++i)
    text += fmt::format("  {}' = {}\n", cell.signature().states[i].name, body[cell.next_state(i)]);
  return text + "}\n";
}

std::string on_a_line(std::string_view text) {
  std::string line;
  bool is_comment = false, is_apart = false, ends_statement = false;
  int parentheses = 0;
  for (const char c : text) {
    is_comment = c == '#' || (is_comment && c != '\n');
    if (is_comment) continue;
    if (c == '\n' || c == '\r' || c == ' ' || c == '\t') {
      is_apart = true;
      ends_statement = ends_statement || (c == '\n' && parentheses == 0);
      continue;
    }
    const char last = line.empty() ? '{' : line.back();
    if (ends_statement && last != '{' && last != ';' && c != '{' && c != '}') line += ';';
    if (is_apart && !line.empty()) line += ' ';
    line += c;
    is_apart = ends_statement = false;
    parentheses += c == '(' ? 1 : c == ')' ? -1 : 0;
  }
  return line;
}

std::string print(const Graph& graph, std::string_view name) {
  const Body body(graph);
  std::vector<std::string_view> arguments, results;
  for (Id id = 0; id < graph.argument_count(); ++id) arguments.push_back(graph.name(id));
  for (const Id result : graph.results()) results.push_back(body[result]);
  return fmt::format("graph {}({}) {{\n{}  return {}\n}}\n", name, fmt::join(arguments, ", "), body.statements(),
                     fmt::join(results, ", "));
}

}  // namespace spikeforge::graph
