#include "csrc/graph/graph.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace spikeforge::graph {
namespace {

// True if the operands can be exchanged. For finite operands, every bit of the result stays the same.
bool is_commutative(Op op) {
  switch (op) {
    case Op::add:
    case Op::multiply:
    case Op::equal:
    case Op::not_equal:
    case Op::logical_and:
    case Op::logical_or: return true;
    default: return false;
  }
}

// Returns the contents of a node, to compare it. Numbers are compared by their bits: 0 and -0 differ, and NaN equals
// itself.
std::array<std::uint64_t, 11> words_of(const Node& node) {
  static_assert(sizeof(Node::operands) == 3 * sizeof(Id));
  const std::uint64_t surrogate = node.surrogate.kind ? 1 + static_cast<std::uint64_t>(*node.surrogate.kind) : 0;
  return {static_cast<std::uint64_t>(node.op),
          node.operands[0],
          node.operands[1],
          node.operands[2],
          std::bit_cast<std::uint64_t>(node.number),
          surrogate,
          std::bit_cast<std::uint64_t>(node.surrogate.args[0]),
          std::bit_cast<std::uint64_t>(node.surrogate.args[1]),
          std::bit_cast<std::uint64_t>(node.surrogate.args[2]),
          std::bit_cast<std::uint64_t>(node.surrogate.args[3]),
          node.draw.number * std::uint64_t{2} + node.draw.once};
}

// Checks a constant parameter of a distribution.
void check_law(Op law, double number) {
  const std::string_view name = info(law).text;
  if (law == Op::bernoulli && !(0 <= number && number <= 1))
    throw GraphError(fmt::format("{}: the probability must be in [0, 1], but is {}", name, text_of(number)));
  if (law == Op::poisson && !(0 <= number && std::isfinite(number)))
    throw GraphError(fmt::format("{}: the rate must be finite and not negative, but is {}", name, text_of(number)));
}

const char* noun(Kind kind) { return kind == Kind::number ? "a number" : "a boolean"; }

const char* advice(Kind wanted) {
  return wanted == Kind::number ? "write where(condition, 1, 0) for one" : "write a comparison, such as x > 0";
}

// ---- folding: replacements of a new node that keep every bit of its value, in any floating-point type ----
//
// Constants are double precision numbers that are rounded to the type of the computation. Therefore arithmetic on two
// constants is not folded: 0.1 + 0.2 rounded to float32 is not the float32 sum of the rounded two, and two doubles that
// differ may round to the same float32. Negation and absolute value commute with rounding. Other expressions of
// constants are evaluated when the type is known; this is cheap, since values that depend on no input are computed once
// per neuron.
//
// x + 0 is not replaced by x, which differs at x = -0; nor are x - x and x * 0 by 0, which differ at infinity.

// True for 0, but not for -0.
bool is_plus_zero(const Graph& graph, Id id) { return graph.is_constant(id, 0) && !std::signbit(graph[id].number); }

bool is_truth(const Graph& graph, Id id, bool value) {
  return graph.is(id, Op::truth) && (graph[id].number != 0) == value;
}

std::optional<Id> fold_neg(Graph& graph, Id x) {
  if (graph.is(x, Op::constant)) return graph.constant(-graph[x].number);
  if (graph.is(x, Op::neg)) return graph.operands(x)[0];
  return std::nullopt;
}

std::optional<Id> fold_abs(Graph& graph, Id x) {
  if (graph.is(x, Op::constant)) return graph.constant(std::abs(graph[x].number));
  if (graph.is(x, Op::abs)) return x;
  return std::nullopt;
}

std::optional<Id> fold_not(Graph& graph, Id c) {
  if (graph.is(c, Op::truth)) return graph.truth(graph[c].number == 0);
  if (graph.is(c, Op::logical_not)) return graph.operands(c)[0];
  return std::nullopt;
}

// Simplifies `and` or `or`. An operand equal to `neutral` (true for `and`) leaves the other operand unchanged; an
// operand equal to its negation determines the result.
std::optional<Id> fold_junction(Graph& graph, Id a, Id b, bool neutral) {
  if (a == b || is_truth(graph, b, neutral) || is_truth(graph, a, !neutral)) return a;
  if (is_truth(graph, a, neutral) || is_truth(graph, b, !neutral)) return b;
  return std::nullopt;
}

std::optional<Id> fold_where(Graph& graph, Id condition, Id a, Id b) {
  if (a == b || is_truth(graph, condition, true)) return a;
  if (is_truth(graph, condition, false)) return b;
  if (graph.is(condition, Op::logical_not)) return graph.make(Op::where, {graph.operands(condition)[0], b, a});
  return std::nullopt;
}

// Returns a node that has the value of `op` on these operands, or std::nullopt if `op` itself needs a new node.
std::optional<Id> fold(Graph& graph, Op op, std::span<const Id> x, const Surrogate& surrogate) {
  switch (op) {
    case Op::neg: return fold_neg(graph, x[0]);
    case Op::abs: return fold_abs(graph, x[0]);
    case Op::logical_not: return fold_not(graph, x[0]);
    case Op::logical_and: return fold_junction(graph, x[0], x[1], true);
    case Op::logical_or: return fold_junction(graph, x[0], x[1], false);
    case Op::add:
      if (graph.is(x[1], Op::neg)) return graph.make(Op::subtract, {x[0], graph.operands(x[1])[0]});
      if (graph.is(x[0], Op::neg)) return graph.make(Op::subtract, {x[1], graph.operands(x[0])[0]});
      return std::nullopt;
    case Op::multiply:
      if (graph.is_constant(x[1], 1)) return x[0];
      if (graph.is_constant(x[0], 1)) return x[1];
      return std::nullopt;
    case Op::divide:
      if (graph.is_constant(x[1], 1)) return x[0];
      return std::nullopt;
    case Op::subtract:
      if (is_plus_zero(graph, x[1])) return x[0];
      if (graph.is(x[1], Op::neg)) return graph.make(Op::add, {x[0], graph.operands(x[1])[0]});
      return std::nullopt;
    case Op::select:  // whose spike was replaced by a constant
      if (graph.is_constant(x[0], 0)) return x[2];
      if (graph.is_constant(x[0], 1)) return x[1];
      return std::nullopt;
    case Op::where: return fold_where(graph, x[0], x[1], x[2]);
    case Op::detach:
      if (graph.is(x[0], Op::detach) || graph.is(x[0], Op::constant)) return x[0];
      return std::nullopt;
    case Op::add_gradient:
      if (graph.is(x[1], Op::constant)) return x[0];
      return std::nullopt;
    case Op::surrogate_gradient:
      if (!surrogate.kind) return graph.constant(0);
      return std::nullopt;
    default: return std::nullopt;
  }
}

}  // namespace

std::size_t Graph::Hash::operator()(const Node& node) const {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint64_t word : words_of(node)) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

bool Graph::Equal::operator()(const Node& a, const Node& b) const { return words_of(a) == words_of(b); }

Id Graph::number(const Node& node) {
  Node key = node;
  if (is_commutative(key.op) && key.operands[0] > key.operands[1]) std::swap(key.operands[0], key.operands[1]);
  const auto known = numbering_.find(key);
  if (known != numbering_.end()) return known->second;
  if (nodes_.size() >= most_nodes_)
    throw GraphError(
        fmt::format("a neuron or a rule has at most {} operations, arguments and constants included", most_nodes_));
  const Id id = static_cast<Id>(nodes_.size());
  nodes_.push_back(node);
  names_.emplace_back();
  numbering_.emplace(key, id);
  return id;
}

Id Graph::argument(std::string name) {
  if (argument_count_ != nodes_.size()) throw GraphError("an argument is made before all other nodes");
  const Id id = number({.op = Op::argument, .number = static_cast<double>(argument_count_)});
  ++argument_count_;
  names_[id] = std::move(name);
  return id;
}

Id Graph::constant(double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();  // a single NaN, without sign or payload
  return number({.op = Op::constant, .number = value});
}

Id Graph::truth(bool value) { return number({.op = Op::truth, .number = value ? 1. : 0.}); }

void Graph::check(Op op, std::span<const Id> operands) const {
  const OpInfo& known = info(op);
  if (known.form == Form::leaf) throw GraphError(fmt::format("{} has no operands", known.name));
  if (operands.size() != static_cast<std::size_t>(known.arity))
    throw GraphError(fmt::format("{} takes {} operand{}, but {} {} given", known.text, known.arity,
                                 known.arity == 1 ? "" : "s", operands.size(), operands.size() == 1 ? "is" : "are"));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] >= nodes_.size()) throw GraphError(fmt::format("{}: operand {} is not a node", known.text, i + 1));
    const Kind wanted = known.operands[i];
    if (kind(operands[i]) != wanted)
      throw GraphError(fmt::format("{}: operand {} must be {}, but is {}; {}", known.text, i + 1, noun(wanted),
                                   noun(kind(operands[i])), advice(wanted)));
  }
}

Id Graph::make(Op op, std::span<const Id> operands, const Surrogate& surrogate) {
  if (is_draw(op)) return draw(op, operands, {.number = next_draw_});
  check(op, operands);
  if (const std::optional<Id> same = fold(*this, op, operands, surrogate)) return *same;
  Node node{.op = op};
  for (std::size_t i = 0; i < operands.size(); ++i) node.operands[i] = operands[i];
  if (info(op).form == Form::spike) node.surrogate = surrogate;
  return number(node);
}

Id Graph::draw(Op law, std::span<const Id> operands, Draw which) {
  check(law, operands);
  Node node{.op = law, .draw = which};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    node.operands[i] = operands[i];
    if (is(operands[i], Op::constant)) check_law(law, nodes_[operands[i]].number);
  }
  const std::size_t before = nodes_.size();
  const Id id = number(node);
  if (nodes_.size() > before) take_words(law, which);
  return id;
}

void Graph::take_words(Op law, Draw which) {
  const std::uint32_t count = info(law).words;
  if (which.number >= most_draws || most_draws - which.number < count)
    throw GraphError(fmt::format("{}: the draws of a neuron are numbered below {}", info(law).text, most_draws));
  for (std::uint32_t i = 0; i < count; ++i)
    if (!taken_words_.insert({which.number + i, which.once}).second)
      throw GraphError(fmt::format("{}: another draw has number {}", info(law).text, which.number + i));
  next_draw_ = std::max(next_draw_, which.number + count);
}

Id Graph::like(const Node& node, std::span<const Id> operands) {
  if (node.op == Op::constant) return constant(node.number);
  if (node.op == Op::truth) return truth(node.number != 0);
  if (is_draw(node.op)) return draw(node.op, operands, node.draw);
  return make(node.op, operands, node.surrogate);
}

void Graph::add_result(Id id) {
  if (id >= nodes_.size() || kind(id) != Kind::number) throw GraphError("a result must be a number, not a boolean");
  results_.push_back(id);
}

void Graph::set_name(Id id, std::string_view name) {
  if (names_[id].empty() && !is(id, Op::constant) && !is(id, Op::truth)) names_[id] = name;
}

}  // namespace spikeforge::graph
