#include "csrc/autodiff/response.h"
#include "csrc/autodiff/jvp.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/dependence.h"

#include <numeric>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;
using graph::Graph;
using graph::Id;
using graph::Op;

// The same neuron with spikes of 0.
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

Cell response(const Cell& cell, std::size_t into) {
  const std::size_t states = cell.state_count();
  if (states == 0) throw graph::GraphError(cell.name() + " has no state, in which an input could leave a trace");
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
