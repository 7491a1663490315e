#include "csrc/graph/internal/fold.h"

#include <cmath>

namespace spikeforge::graph {
namespace {

// 0, and not -0.
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

// `neutral` leaves the other operand as it is: true for `and`; its negation decides alone.
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

}  // namespace

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
    case Op::select:  // of what is no spike any more
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

}  // namespace spikeforge::graph
