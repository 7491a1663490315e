#include "csrc/autodiff/jvp.h"
#include "csrc/autodiff/rules.h"
#include "csrc/graph/internal/copy.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;
using graph::Graph;
using graph::Id;
using graph::Value;

// The signature with an argument for each tangent, after the present ones.
graph::Signature with_tangents(const Cell& cell, const std::vector<bool>& inputs, const std::vector<bool>& params) {
  graph::UnusedNames names(cell.graph());
  int count = 0;
  const auto name = [&] { return names.take(fmt::format("tangent{}", count++)); };
  graph::Signature signature = cell.signature();
  for (const bool has : inputs)
    if (has) signature.inputs.push_back(name());
  for (std::size_t s = 0; s < cell.state_count(); ++s) signature.states.emplace_back(name());
  for (const bool has : params)
    if (has) signature.params.push_back(name());
  return signature;
}

class Forward {
 public:
  Forward(const Cell& primal, const std::vector<bool>& inputs, const std::vector<bool>& params)
      : primal_(primal),
        both_(with_tangents(primal, inputs, params)),
        recording_(both_.graph()),
        copies_(primal.graph().size()),
        tangents_(primal.graph().size()) {
    std::size_t next = primal.input_count();
    for (std::size_t i = 0; i < primal.input_count(); ++i)
      place(primal.input(i), both_.input(i), inputs[i] ? std::optional(both_.input(next++)) : std::nullopt);
    for (std::size_t s = 0; s < primal.state_count(); ++s)
      place(primal.state(s), both_.state(s), both_.state(primal.state_count() + s));
    next = primal.param_count();
    for (std::size_t j = 0; j < primal.param_count(); ++j)
      place(primal.param(j), both_.param(j), params[j] ? std::optional(both_.param(next++)) : std::nullopt);
  }

  Cell build() {
    const Graph& graph = primal_.graph();
    for (Id id = static_cast<Id>(graph.argument_count()); id < graph.size(); ++id) {
      copies_[id] = graph::copy_node(both_.graph(), graph, id, copies_);
      tangents_[id] = tangent_of(id);
    }
    std::vector<Id> outputs, next_states;
    for (const bool tangents : {false, true}) {
      for (std::size_t k = 0; k < primal_.output_count(); ++k) outputs.push_back(result(primal_.output(k), tangents));
      for (std::size_t s = 0; s < primal_.state_count(); ++s)
        next_states.push_back(result(primal_.next_state(s), tangents));
    }
    both_.finish(outputs, next_states);
    return std::move(both_);
  }

 private:
  void place(Id of, Id copy, std::optional<Id> tangent) {
    copies_[of] = copy;
    if (tangent) tangents_[of] = recording_.value(*tangent);
  }

  // A contribution is linear in the gradient that comes in: with an operand's tangent in its place, it is that
  // operand's share of the result's tangent.
  std::optional<Value> tangent_of(Id id) {
    const std::span<const Id> operands = primal_.graph().operands(id);
    const auto operand = [&](std::size_t i) {
      return i < operands.size() ? recording_.value(copies_[operands[i]]) : Value(0);
    };
    std::optional<Value> sum;
    std::size_t shares = operands.size();
    if (primal_.graph().is(id, graph::Op::select)) {
      // For s a + (1 - s) b, where the shares of a and b depend on s: they are selected, since a mask would be
      // constant.
      shares = 1;
      const auto tangent = [&](std::size_t i) { return tangents_[operands[i]].value_or(Value(0)); };
      if (tangents_[operands[1]] || tangents_[operands[2]]) sum = select(operand(0), tangent(1), tangent(2));
    }
    for (std::size_t i = 0; i < shares; ++i) {
      const std::optional<Value>& tangent = tangents_[operands[i]];
      if (!tangent) continue;
      const Site site{operand(0),        operand(1),
                      operand(2),        recording_.value(copies_[id]),
                      Adjoint(*tangent), primal_.graph()[id].surrogate};
      const Contributions parts = contributions(primal_.graph()[id].op, site);
      if (!parts[i]) continue;
      const Value part = parts[i]->value();
      sum = sum ? *sum + part : part;
    }
    return sum;
  }

  Id result(Id id, bool tangent) {
    if (!tangent) return copies_[id];
    return tangents_[id] ? recording_.id(*tangents_[id], "jvp") : both_.graph().constant(0);
  }

  const Cell& primal_;
  Cell both_;
  graph::Recording recording_;
  std::vector<Id> copies_;  // what became of each node
  std::vector<std::optional<Value>> tangents_;
};

}  // namespace

Cell jvp(const Cell& cell, const std::vector<bool>& inputs, const std::vector<bool>& params) {
  return Forward(cell, inputs, params).build();
}

}  // namespace spikeforge::autodiff
