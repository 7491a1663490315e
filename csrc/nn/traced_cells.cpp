#include <spikeforge/kernels/multistep/predefined_cells.h>
#include <spikeforge/neuron/cells.h>
#include <spikeforge/nn/internal/predefined.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/surrogate.h>

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

// What a step computes before the reset, and the second state, where there is one.
struct Charged {
  Value h, threshold;
};

// charge(x, states, c) is Charged; recover(h, s, x, states, c) the second state after the step.
template <class Call, class Charge, class Recover>
spikeforge::Neuron make(const Call& call, bool strict, const Charge& charge, const Recover& recover) {
  const Described neuron = describe(call);
  TORCH_CHECK_VALUE(call.spiking, neuron.module, ": as a traced cell it needs spiking(true)");
  const ops::Surrogate parsed = ops::parse_surrogate(neuron.module, call.surrogate, call.surrogate_args);
  const graph::Surrogate surrogate{parsed.kind, parsed.args};

  const auto constants = constants_of(call);
  graph::Signature signature{neuron.module, {"x"}, {}, {}};
  for (const std::string& state : neuron.states) signature.states.emplace_back(state);
  for (const auto& [name, param] : constants)
    if (param.is_tensor()) signature.params.emplace_back(name);

  const graph::Cell cell = graph::trace(signature, [&](Values inputs, Values states, Values values) {
    const Constants c(constants, values);
    const Charged charged = charge(inputs[0], states, c);
    const Value u = charged.h - charged.threshold;
    const Value s = strict ? spike_strict(u, surrogate) : spike(u, surrogate);
    const Value resetting = call.detach_reset ? detach(s) : s;
    Step step{{s},
              {call.v_reset ? select(resetting, c("v_reset"), charged.h) : charged.h - resetting * charged.threshold}};
    if (states.size() == 2) step.next_states.push_back(recover(charged.h, s, inputs[0], states, c));
    return step;
  });
  return spikeforge::Neuron(cell);
}

template <class Call>
CellForm form_of(const Call& call) {
  CellForm form{.hard_reset = call.v_reset.has_value()};
  if constexpr (requires { call.decay_input; }) form.decay_input = call.decay_input;
  return form;
}

// The equations are the cell's own, with values of a graph as its numbers.
template <template <class, class> class Neuron, class Call>
spikeforge::Neuron trace_predefined(NeuronKind kind, const Call& call, bool strict) {
  using Traced = Neuron<Value, CellForm>;
  const PredefinedCell& cell = predefined_cell(kind);
  const Described described = describe(call);
  for (const auto& [name, param] : described.constants)
    if (!param.is_tensor())
      ops::check_number(described.module,
                        *std::find_if(cell.params.begin(), cell.params.end(),
                                      [n = std::string_view(name)](const CellParam& p) { return p.name == n; }),
                        param.number());
  const auto neuron_of = [&](const Constants& c) {
    std::vector<Value> params;
    for (const CellParam& param : cell.params) params.push_back(c(param.name));
    return Traced(params.data(), form_of(call));
  };
  return make(
      call, strict,
      [&](const Value& x, Values states, const Constants& c) {
        const Traced neuron = neuron_of(c);
        Value threshold = c("v_threshold");
        if constexpr (Traced::adapts) threshold = neuron.threshold(threshold, states.data());
        return Charged{neuron.charge(x, states.data()), threshold};
      },
      [&](const Value& h, const Value& s, const Value&, Values states, const Constants& c) {
        if constexpr (Traced::n_states == 2)
          return neuron_of(c).recover(h, s, states[1]);
        else
          return h;
      });
}

}  // namespace

#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)         \
  spikeforge::Neuron traced_cell(const Struct##Call& call, bool strict) {        \
    return trace_predefined<spikeforge::Struct>(NeuronKind::name, call, strict); \
  }
#include <spikeforge/neuron/neurons.def>

spikeforge::Neuron traced_cell(const CubaLIFCall& call, bool strict) {
  for (const auto& [name, param] : describe(call).constants)
    if (std::string_view(name).starts_with("tau") && !param.is_tensor())
      ops::check_positive("CubaLIF", name, param.number());
  const auto current = [](const Value& x, Values states, const Constants& c) {
    return states[1] - 1 / c("tau_synapse") * states[1] + x;
  };
  return make(
      call, strict,
      [&](const Value& x, Values states, const Constants& c) {
        const Value params[] = {c("tau_membrane"), c("v_threshold"), c("v_reset")};
        const spikeforge::LIF<Value, CellForm> membrane(params, form_of(call));
        return Charged{membrane.charge(current(x, states, c), states.data()), c("v_threshold")};
      },
      [&](const Value&, const Value&, const Value& x, Values states, const Constants& c) {
        return current(x, states, c);
      });
}

}  // namespace spikeforge::nn
