#include "csrc/autodiff/composition.h"
#include "csrc/autodiff/affine.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"
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

// A and b of one step.
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

Cell composition(const Cell& cell) {
  const Graph map = map_of_step(cell);
  const std::size_t n = cell.state_count();
  Cell composed(signature_of(cell));
  std::vector<Id> arguments;
  for (std::size_t i = 0; i < cell.input_count(); ++i) arguments.push_back(composed.input(i));
  for (std::size_t s = 0; s < n; ++s) arguments.push_back(composed.state(s));  // nothing depends on them
  for (std::size_t j = 0; j < cell.param_count(); ++j) arguments.push_back(composed.param(j));
  const std::vector<Id> entries = copy_into(composed.graph(), map, arguments, map.results());

  const graph::Recording recording(composed.graph());
  // Row i of A_t times a column of what is composed so far.
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
