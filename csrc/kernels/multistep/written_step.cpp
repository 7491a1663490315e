#include "csrc/kernels/multistep/written_step.h"
#include "csrc/graph/internal/surrogate_values.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/neuron/cells.h"

#include <fmt/format.h>

#include <stdexcept>

namespace spikeforge {
namespace {

using graph::Value;

// The function of a neuron's struct.
template <class Body>
auto with_struct_of(NeuronKind kind, Body&& body) {
  switch (kind) {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params) \
  case NeuronKind::name:                                                 \
    return body.template operator()<Struct<Value, CellForm>>();
#include "csrc/neuron/neurons.def"
  }
  throw std::logic_error("there is no such neuron");
}

Value fired(const Value& u, const CellForm& form, bool strict, const graph::Surrogate& surrogate) {
  if (!form.spiking) return graph::surrogate_primitive(u, surrogate);
  return strict ? spike_strict(u, surrogate) : spike(u, surrogate);
}

Value reset(const Value& h, const Value& s, const Value& threshold, const Value& v_reset, const CellForm& form) {
  const Value by = form.detach_reset ? detach(s) : s;
  if (!form.hard_reset) return h - by * threshold;
  return form.spiking ? select(by, v_reset, h) : by * v_reset + (1 - by) * h;
}

}  // namespace

WrittenStep written_step(NeuronKind kind, const CellForm& form, bool strict, const graph::Surrogate& surrogate,
                         graph::Values params, const Value& x, graph::Values states) {
  return with_struct_of(kind, [&]<class Neuron>() {
    const Neuron neuron(params.data(), form);
    const Value h = neuron.charge(x, states.data());
    Value threshold = params[Neuron::v_threshold];
    if constexpr (Neuron::adapts) threshold = neuron.threshold(threshold, states.data());
    const Value s = fired(h - threshold, form, strict, surrogate);
    WrittenStep step{s, {reset(h, s, threshold, params[Neuron::v_reset], form)}};
    if constexpr (Neuron::n_states == 2) step.next_states.push_back(neuron.recover(h, s, states[1]));
    return step;
  });
}

std::vector<InitialState> initial_states(NeuronKind kind, bool hard_reset) {
  return with_struct_of(kind, [&]<class Neuron>() {
    std::vector<InitialState> initial(Neuron::n_states);
    if (hard_reset) initial[0].param = Neuron::v_reset;
    if constexpr (Neuron::n_states == 2) {
      graph::Graph graph;
      std::vector<Value> params;
      params.reserve(Neuron::n_params);
      for (int j = 0; j < Neuron::n_params; ++j) graph.argument(fmt::format("p{}", j));
      const graph::Recording recording(graph);
      for (int j = 0; j < Neuron::n_params; ++j) params.push_back(recording.value(static_cast<graph::Id>(j)));
      const graph::Id start = recording.id(Neuron::initial_recovery(params.data()), "initial_states");
      if (graph.is(start, graph::Op::argument))
        initial[1].param = static_cast<int>(start);
      else
        initial[1].number = graph[start].number;
    }
    return initial;
  });
}

}  // namespace spikeforge
