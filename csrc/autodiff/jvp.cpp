#include "csrc/autodiff/jvp.h"
#include "csrc/autodiff/rules.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;
using graph::Graph;
using graph::Id;
using graph::Op;
using graph::Value;

// Returns the signature with an additional argument for each tangent, after the existing ones.
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

  // Returns the tangent of a node. A contribution is linear in the upstream gradient: if the tangent of an operand
  // replaces that gradient, the contribution is the operand's share of the tangent of the node.
  std::optional<Value> tangent_of(Id id) {
    const std::span<const Id> operands = primal_.graph().operands(id);
    const auto operand = [&](std::size_t i) {
      return i < operands.size() ? recording_.value(copies_[operands[i]]) : Value(0);
    };
    std::optional<Value> sum;
    std::size_t shares = operands.size();
    if (primal_.graph().is(id, graph::Op::select)) {
      // In s a + (1 - s) b, the shares of a and b depend on s. They are selected, because a mask would be constant.
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
  std::vector<Id> copies_;  // the copy of each node
  std::vector<std::optional<Value>> tangents_;
};

// ---- the derivative of a neuron that does not fire ----

// Returns the same neuron with all spikes replaced by 0.
Cell silent(const Cell& cell) {
  Cell copy(cell.signature());
  const Graph& graph = cell.graph();
  std::vector<Id> copies(graph.size());
  std::iota(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(graph.argument_count()), Id{0});
  std::vector<bool> is_spike(graph.size());
  for (Id id = static_cast<Id>(graph.argument_count()); id < graph.size(); ++id) {
    is_spike[id] = graph.is(id, Op::spike) || graph.is(id, Op::spike_strict) ||
                   (graph.is(id, Op::add_gradient) && is_spike[graph.operands(id)[0]]);  // a custom surrogate
    copies[id] = is_spike[id] ? copy.graph().constant(0) : graph::copy_node(copy.graph(), graph, id, copies);
  }
  std::vector<Id> outputs, next_states;
  for (std::size_t i = 0; i < cell.output_count(); ++i) outputs.push_back(copies[cell.output(i)]);
  for (std::size_t s = 0; s < cell.state_count(); ++s) next_states.push_back(copies[cell.next_state(s)]);
  copy.finish(outputs, next_states);
  return copy;
}

}  // namespace

Cell jvp(const Cell& cell, const std::vector<bool>& inputs, const std::vector<bool>& params) {
  return Forward(cell, inputs, params).build();
}

Cell response(const Cell& cell, std::size_t into) {
  const std::size_t states = cell.state_count();
  if (states == 0) throw graph::GraphError(cell.name() + " has no state, so its inputs have no eligibility trace");
  std::vector<bool> inputs(cell.input_count()), params(cell.param_count());
  inputs[into] = true;
  const Cell both = jvp(silent(cell), inputs, params);

  const graph::Dependence dependence(both.graph());
  bool is_affine = true;  // between spikes
  for (std::size_t s = 0; s < states; ++s)
    for (std::size_t v = 0; v < states; ++v)
      is_affine = is_affine && !dependence.on(both.next_state(states + s), both.state(v));
  const std::size_t first = is_affine ? states : 0;

  graph::Signature signature = both.signature();
  signature.inputs = {signature.inputs.back()};
  signature.states.erase(signature.states.begin(), signature.states.begin() + static_cast<std::ptrdiff_t>(first));
  Cell response(std::move(signature));
  std::vector<Id> arguments;
  for (std::size_t i = 0; i < cell.input_count(); ++i) arguments.push_back(response.graph().constant(0));
  arguments.push_back(response.input(0));
  for (std::size_t s = 0; s < 2 * states; ++s)
    arguments.push_back(s < first ? response.graph().constant(0) : response.state(s - first));
  for (std::size_t j = 0; j < cell.param_count(); ++j) arguments.push_back(response.param(j));
  std::vector<Id> results;
  for (std::size_t s = first; s < 2 * states; ++s) results.push_back(both.next_state(s));
  const std::vector<Id> next = graph::copy_into(response.graph(), both.graph(), arguments, results);
  response.finish(std::vector<Id>{next[states - first]}, next);
  return response;
}

}  // namespace spikeforge::autodiff
