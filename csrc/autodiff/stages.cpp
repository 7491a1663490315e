#include "csrc/autodiff/stages.h"
#include "csrc/autodiff/affine.h"
#include "csrc/autodiff/gather.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/hoist.h"
#include "csrc/graph/internal/lower.h"
#include "csrc/graph/internal/multiply_adds.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace spikeforge::autodiff {
namespace {

using graph::Graph;
using graph::Hoisted;
using graph::Id;

std::vector<Id> first_ids(std::size_t count) {
  std::vector<Id> ids(count);
  std::iota(ids.begin(), ids.end(), Id{0});
  return ids;
}

// Splits a cell whose factors are the parameters themselves.
Hoisted nothing_hoisted(const Graph& graph, std::size_t first, std::size_t count) {
  Graph identity;
  for (std::size_t i = 0; i < count; ++i) identity.argument(graph.name(static_cast<Id>(first + i)));
  for (const Id id : first_ids(count)) identity.add_result(id);
  return {identity, graph};
}

Graph with_zeros(const Graph& graph, const std::vector<bool>& zero) {
  Graph copy;
  for (const Id id : first_ids(graph.argument_count())) copy.argument(graph.name(id));
  std::vector<Id> results = copy_into(copy, graph, first_ids(graph.argument_count()), graph.results());
  for (std::size_t k = 0; k < results.size(); ++k) copy.add_result(zero[k] ? copy.constant(0) : results[k]);
  return compacted(copy);
}

// A cell split into the computation of its factors and the rest, both differentiated.
struct Factored {
  Hoisted split;
  Graph backward;  // the vjp of split.inner
  Graph epilogue;  // the vjp of split.prologue, which propagates the gradients of the factors
  std::size_t sums = 0;
};

Factored factored(Hoisted split, std::size_t first, std::size_t params) {
  Graph backward = vjp(split.inner);
  const std::size_t factors = split.prologue.results().size();
  // A factor that no gradient reaches is not differentiated: it may have no derivative.
  std::vector<bool> unreached(factors);
  for (std::size_t k = 0; k < factors; ++k) unreached[k] = is_zero(backward, first + k);
  Graph epilogue = vjp(with_zeros(split.prologue, unreached));
  // The gradient of a factor is not summed if no parameter's gradient depends on it, for example for a constant.
  const graph::Dependence depends(epilogue);
  std::vector<bool> idle(first + factors);
  std::size_t sums = 0;
  for (std::size_t k = 0; k < factors; ++k) {
    const auto needs = [&](Id gradient) { return depends.on(gradient, params + k); };
    idle[first + k] = std::ranges::none_of(epilogue.results(), needs);
    sums += !idle[first + k];
  }
  return {std::move(split), with_zeros(backward, idle), std::move(epilogue), sums};
}

// Splits by factors if that needs no more sums than one per parameter; otherwise by parameters.
Factored by_factors(const Graph& graph, std::size_t first, std::size_t count) {
  Factored cut = factored(hoist(graph, first, count), first, count);
  if (cut.sums <= count) return cut;
  return factored(nothing_hoisted(graph, first, count), first, count);
}

Graph composed(const Graph& first, const Graph& second) {
  Graph both;
  for (Id id = 0; id < first.argument_count(); ++id) both.argument(first.name(id));
  const std::vector<Id> between = copy_into(both, first, first_ids(first.argument_count()), first.results());
  for (const Id result : copy_into(both, second, between, second.results())) both.add_result(result);
  return compacted(both);
}

// Returns a graph with the arguments of the vjp, the first of which are those of the step, and the results of both.
Graph joined(const Graph& step, const Graph& backward) {
  Graph both;
  for (Id id = 0; id < backward.argument_count(); ++id) both.argument(backward.name(id));
  const std::vector<Id> arguments = first_ids(backward.argument_count());
  const std::span<const Id> all = arguments;
  for (const Id id : copy_into(both, step, all.first(step.argument_count()), step.results())) both.add_result(id);
  for (const Id id : copy_into(both, backward, all, backward.results())) both.add_result(id);
  return both;
}

Range gradients_by_next_states(const Stages& stages) {
  return {stages.inputs + stages.states + stages.hoisted + stages.outputs, stages.states};
}

}  // namespace

Stages stages_of(const graph::Cell& cell) {
  Stages stages;
  stages.inputs = cell.input_count();
  stages.states = cell.state_count();
  stages.params = cell.param_count();
  stages.outputs = cell.output_count();
  const std::size_t first_param = stages.inputs + stages.states;
  const std::size_t results = stages.outputs + stages.states;

  Factored cut = by_factors(cell.graph(), first_param, stages.params);
  stages.factors = cut.split.prologue.results().size();
  stages.epilogue = std::move(cut.epilogue);

  const Graph both = joined(lowered(cut.split.inner), cut.backward);
  const Hoisted split = hoist(both, first_param, stages.factors);
  stages.prologue = composed(lowered(cut.split.prologue), split.prologue);
  stages.hoisted = stages.prologue.results().size();
  const std::span<const Id> all = split.inner.results();
  stages.step = restricted(split.inner, first_param + stages.hoisted, all.first(results));
  const Graph backward = restricted(split.inner, split.inner.argument_count(), all.subspan(results));
  stages.backward = gathered(backward, gradients_by_next_states(stages));
  return stages;
}

Graph state_adjoint_map(const Stages& stages) {
  return affine_map(stages.backward, gradients_by_next_states(stages), {stages.inputs, stages.states});
}

std::vector<graph::Id> coefficients(const Stages& stages) {
  const graph::Graph& backward = stages.backward;
  const graph::MultiplyAdds multiply_adds(backward);
  const graph::Dependence depends(backward);
  const std::size_t at_step = stages.inputs + stages.states, known = at_step + stages.hoisted;
  const auto is_of_gradients = [&](graph::Id id) { return depends.beyond(id, 0, known); };
  const auto is_of_the_step = [&](graph::Id id) {
    return !is_of_gradients(id) && depends.beyond(id, at_step, stages.hoisted);
  };
  const std::vector<bool> live = multiply_adds.live_nodes(backward, backward.results());
  std::vector<bool> is_read(backward.size());
  for (graph::Id id = 0; id < backward.size(); ++id)
    if (live[id] && is_of_gradients(id))
      for (const graph::Id source : multiply_adds.sources(backward, id)) is_read[source] = true;
  for (const graph::Id result : backward.results()) is_read[result] = true;
  std::vector<graph::Id> found;
  for (graph::Id id = 0; id < backward.size(); ++id)
    if (is_read[id] && is_of_the_step(id)) found.push_back(id);
  return found;
}

}  // namespace spikeforge::autodiff
