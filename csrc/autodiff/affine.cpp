#include "csrc/autodiff/affine.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/lower.h"
#include "csrc/graph/value.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;
using graph::Graph;
using graph::Id;
using graph::Op;
using graph::Value;

using Term = std::optional<Value>;  // std::nullopt: 0

Term scaled(const Term& a, const Value& factor) { return a ? Term(*a * factor) : a; }

// A_1 .. A_n and b of one node.
using Form = std::vector<Term>;

Term negative(const Term& a) { return a ? Term(-*a) : a; }

Term sum(const Term& a, const Term& b) {
  if (!a || !b) return a ? a : b;
  return *a + *b;
}

class Extraction {
 public:
  Extraction(const Graph& graph, Range arguments)
      : graph_(graph), arguments_(arguments), recording_(map_), depends_(graph) {
    for (Id id = 0; id < graph.argument_count(); ++id) map_.argument(graph.name(id));
  }

  Graph build(Range results) {
    copies_.resize(graph_.size());
    forms_.resize(graph_.size());
    for (Id id = 0; id < graph_.size(); ++id) visit(id);
    const auto form = [&](std::size_t i) -> const Form& { return forms_[graph_.results()[results.first + i]]; };
    for (std::size_t i = 0; i < results.count; ++i)
      for (std::size_t j = 0; j < arguments_.count; ++j) add_result(form(i)[j]);
    for (std::size_t i = 0; i < results.count; ++i) add_result(form(i).back());
    return compacted(map_);
  }

 private:
  bool varies(Id id) const {
    for (std::size_t j = 0; j < arguments_.count; ++j)
      if (depends_.on(id, arguments_.first + j)) return true;
    return false;
  }

  void add_result(const Term& term) { map_.add_result(recording_.id(term.value_or(0), "affine_map")); }

  void visit(Id id) {
    forms_[id].resize(arguments_.count + 1);
    if (!varies(id)) {
      copies_[id] = graph_.is(id, Op::argument) ? id : copy_node(map_, graph_, id, copies_);
      const bool is_term = graph_.kind(id) == graph::Kind::number && !graph_.is_constant(id, 0);
      if (is_term) forms_[id].back() = recording_.value(copies_[id]);
      return;
    }
    if (graph_.is(id, Op::argument)) {
      forms_[id][id - arguments_.first] = 1;
      return;
    }
    for (std::size_t j = 0; j <= arguments_.count; ++j) forms_[id][j] = term(id, j);
  }

  // Returns entry j of a linear operation on forms.
  Term term(Id id, std::size_t j) const {
    const std::span<const Id> x = graph_.operands(id);
    const auto of = [&](std::size_t i) -> const Term& { return forms_[x[i]][j]; };
    const auto factor = [&](std::size_t i) { return recording_.value(copies_[x[i]]); };
    switch (graph_[id].op) {
      case Op::add: return sum(of(0), of(1));
      case Op::subtract: return sum(of(0), negative(of(1)));
      case Op::neg: return negative(of(0));
      case Op::multiply: {
        if (varies(x[0]) == varies(x[1])) break;
        const std::size_t linear = varies(x[0]) ? 0 : 1;
        return scaled(of(linear), factor(1 - linear));
      }
      case Op::divide:
        if (varies(x[1])) break;
        return of(0) ? Term(*of(0) / factor(1)) : Term();
      case Op::lerp:
        if (varies(x[2])) break;
        return sum(of(0), scaled(sum(of(1), negative(of(0))), factor(2)));
      case Op::where:
        if (varies(x[0])) break;
        if (!of(1) && !of(2)) return {};
        return graph::apply(Op::where, {factor(0), of(1).value_or(0), of(2).value_or(0)});
      default: break;
    }
    throw NotAffine(graph_[id].op, fmt::format("affine_map: node {} ({}) is not affine", id, info(graph_[id].op).name));
  }

  const Graph& graph_;
  Range arguments_;
  Graph map_;
  graph::Recording recording_;
  graph::Dependence depends_;
  std::vector<Id> copies_;  // of nodes that do not depend on the arguments of the range
  std::vector<Form> forms_;
};

// ---- compositions of steps ----

std::string reason(Op op) {
  const graph::OpInfo& info = graph::info(op);
  if (op == Op::where || info.result == graph::Kind::boolean)
    return "a condition on a state chooses it, as a reset does";
  switch (op) {
    case Op::multiply: return "it multiplies two values that depend on states";
    case Op::divide: return "it divides by a value that depends on a state";
    default: return fmt::format("it takes {} of a value that depends on a state", info.name);
  }
}

// Returns A and b of one step.
Graph map_of_step(const Cell& cell) {
  const Graph plain = lowered(cell.graph());
  const Range states = {cell.input_count(), cell.state_count()};
  const auto next_states = plain.results().subspan(cell.output_count());
  const auto map_of = [&](std::size_t first, std::size_t count) {
    return affine_map(restricted(plain, plain.argument_count(), next_states.subspan(first, count)), states, {0, count});
  };
  for (std::size_t s = 0; s < states.count; ++s) try {
      map_of(s, 1);
    } catch (const NotAffine& error) {
      throw graph::GraphError(fmt::format("the next {} is not affine in the states: {}",
                                          cell.signature().states[s].name, reason(error.op)));
    }
  return map_of(0, states.count);
}

graph::Signature signature_of(const Cell& cell) {
  graph::UnusedNames names(cell.graph());
  graph::Signature signature{"composition", cell.signature().inputs, {}, cell.signature().params};
  const std::size_t n = cell.state_count();
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      signature.states.emplace_back(names.take(fmt::format("a{}_{}", i, j)), i == j ? 1 : 0);
  for (std::size_t i = 0; i < n; ++i) signature.states.emplace_back(names.take(fmt::format("b{}", i)));
  return signature;
}

}  // namespace

Graph affine_map(const Graph& graph, Range arguments, Range results) {
  return Extraction(graph, arguments).build(results);
}

Cell composition(const Cell& cell) {
  const Graph map = map_of_step(cell);
  const std::size_t n = cell.state_count();
  Cell composed(signature_of(cell));
  std::vector<Id> arguments;
  for (std::size_t i = 0; i < cell.input_count(); ++i) arguments.push_back(composed.input(i));
  for (std::size_t s = 0; s < n; ++s) arguments.push_back(composed.state(s));  // no result depends on them
  for (std::size_t j = 0; j < cell.param_count(); ++j) arguments.push_back(composed.param(j));
  const std::vector<Id> entries = copy_into(composed.graph(), map, arguments, map.results());

  const graph::Recording recording(composed.graph());
  // Row i of A_t times a column of the map composed so far.
  const auto product = [&](std::size_t i, std::size_t first, std::size_t stride) {
    std::optional<Value> sum;
    for (std::size_t k = 0; k < n; ++k) {
      const Id factor = entries[i * n + k];
      if (composed.graph().is_constant(factor, 0)) continue;
      const Value part = recording.value(factor) * recording.value(composed.state(first + k * stride));
      sum = sum ? *sum + part : part;
    }
    return sum.value_or(0);
  };
  std::vector<Id> next;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) next.push_back(recording.id(product(i, j, n), "composition"));
  for (std::size_t i = 0; i < n; ++i) {
    const Value summand = recording.value(entries[n * n + i]);
    next.push_back(recording.id(product(i, n * n, 1) + summand, "composition"));
  }
  const Id output = composed.graph().constant(0);
  composed.finish({&output, 1}, next);
  return composed;
}

}  // namespace spikeforge::autodiff
