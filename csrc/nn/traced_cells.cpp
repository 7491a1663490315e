#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/written_step.h"
#include "csrc/nn/internal/predefined.h"
#include "ops/common/checks.h"
#include "ops/multistep/surrogate.h"

#include <algorithm>
#include <string_view>

namespace spikeforge::nn {
namespace {

// A cell's constants by name: a number is itself, a tensor the next parameter.
class Constants {
 public:
  Constants(const std::vector<std::pair<const char*, Param>>& all, Values params) {
    std::size_t next = 0;
    for (const auto& [name, param] : all)
      values_.emplace_back(name, param.is_tensor() ? params[next++] : Value(param.number()));
  }

  Value operator()(std::string_view name) const {
    const auto found = std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == name; });
    return found == values_.end() ? Value(0.0) : found->second;  // v_reset, under soft reset
  }

 private:
  std::vector<std::pair<std::string_view, Value>> values_;
};

template <class Call>
CellForm form_of(const Call& call) {
  CellForm form{.hard_reset = call.v_reset.has_value(), .detach_reset = call.detach_reset};
  if constexpr (requires { call.decay_input; }) form.decay_input = call.decay_input;
  return form;
}

// step_of(surrogate, x, states, constants) is a WrittenStep.
template <class Call, class StepOf>
spikeforge::Neuron make(const Call& call, const StepOf& step_of) {
  const Described neuron = describe(call);
  TORCH_CHECK_VALUE(call.spiking, neuron.module, ": as a traced cell it needs spiking(true)");
  const ops::Surrogate parsed = ops::parse_surrogate(neuron.module, call.surrogate, call.surrogate_args);

  const auto constants = constants_of(call);
  graph::Signature signature{neuron.module, {"x"}, {}, {}};
  // Samples that start anew do so at constants of the text, whatever states a call is given.
  const std::vector<Param> starts = starts_of(call, neuron.states.size());
  for (std::size_t s = 0; s < starts.size(); ++s)
    signature.states.emplace_back(neuron.states[s], starts[s].is_tensor() ? 0.0 : starts[s].number());
  for (const auto& [name, param] : constants)
    if (param.is_tensor()) signature.params.emplace_back(name);

  const graph::Cell cell = graph::trace(signature, [&](Values inputs, Values states, Values values) {
    WrittenStep step =
        step_of(graph::Surrogate{parsed.kind, parsed.args}, inputs[0], states, Constants(constants, values));
    return Step{{step.spike}, std::move(step.next_states)};
  });
  return spikeforge::Neuron(cell);
}

template <class Call>
spikeforge::Neuron trace_predefined(NeuronKind kind, const Call& call, bool strict) {
  const PredefinedCell& cell = predefined_cell(kind);
  const Described described = describe(call);
  for (const auto& [name, param] : described.constants)
    if (!param.is_tensor())
      ops::check_number(described.module,
                        *std::find_if(cell.params.begin(), cell.params.end(),
                                      [n = std::string_view(name)](const CellParam& p) { return p.name == n; }),
                        param.number());
  return make(call, [&](const graph::Surrogate& surrogate, const Value& x, Values states, const Constants& c) {
    std::vector<Value> params;
    for (const CellParam& param : cell.params) params.push_back(c(param.name));
    return written_step(kind, form_of(call), strict, surrogate, params, x, states);
  });
}

}  // namespace

#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)  \
  spikeforge::Neuron traced_cell(const Struct##Call& call, bool strict) { \
    return trace_predefined(NeuronKind::name, call, strict);              \
  }
#include "csrc/neuron/neurons.def"

// A LIF whose input is the synaptic current.
spikeforge::Neuron traced_cell(const CubaLIFCall& call, bool strict) {
  for (const auto& [name, param] : describe(call).constants)
    if (std::string_view(name).starts_with("tau") && !param.is_tensor())
      ops::check_positive("CubaLIF", name, param.number());
  return make(call, [&](const graph::Surrogate& surrogate, const Value& x, Values states, const Constants& c) {
    const Value current = states[1] - 1 / c("tau_synapse") * states[1] + x;
    const Value params[] = {c("tau_membrane"), c("v_threshold"), c("v_reset")};
    WrittenStep step = written_step(NeuronKind::lif, form_of(call), strict, surrogate, params, current, states);
    step.next_states.push_back(current);
    return step;
  });
}

}  // namespace spikeforge::nn
