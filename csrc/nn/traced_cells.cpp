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
    return std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == name; })->second;
  }

 private:
  std::vector<std::pair<std::string_view, Value>> values_;
};

bool is_positive(std::string_view constant) { return constant.starts_with("tau") || constant == "delta_t"; }

// h = charge(x, states, c); the second state, where there is one, is recover(h, s, states, x, c).
template <class Call, class Charge, class Recover>
TracedCell make(const Call& call, bool strict, const Charge& charge, const Recover& recover) {
  const Described neuron = describe(call);
  TORCH_CHECK_VALUE(call.spiking, neuron.module, ": as a traced cell it needs spiking(true)");
  const ops::Surrogate parsed = ops::parse_surrogate(neuron.module, call.surrogate, call.surrogate_args);
  const graph::Surrogate surrogate{parsed.kind, {parsed.args[0], parsed.args[1]}};

  auto constants = neuron.constants;
  if (call.v_reset) constants.emplace_back("v_reset", *call.v_reset);
  graph::Signature signature{neuron.module, {"x"}, {}, {}};
  for (const std::string& state : neuron.states) signature.states.emplace_back(state);
  Tensors params;
  for (const auto& [name, param] : constants) {
    if (param.is_tensor()) {
      signature.params.emplace_back(name);
      params.push_back(param.tensor());
      continue;
    }
    if (is_positive(name)) ops::check_positive(neuron.module, name, param.number());
  }

  const graph::Cell cell = graph::trace(signature, [&](Values inputs, Values states, Values values) {
    const Constants c(constants, values);
    const Value h = charge(inputs[0], states, c);
    const Value u = h - c("v_threshold");
    const Value s = strict ? spike_strict(u, surrogate) : spike(u, surrogate);
    const Value resetting = call.detach_reset ? detach(s) : s;
    Step step{{s}, {call.v_reset ? select(resetting, c("v_reset"), h) : h - resetting * c("v_threshold")}};
    if (states.size() == 2) step.next_states.push_back(recover(h, s, inputs[0], states, c));
    return step;
  });
  return {spikeforge::Neuron(cell), std::move(params)};
}

template <class Call, class Charge>
TracedCell make(const Call& call, bool strict, const Charge& charge) {
  return make(call, strict, charge,
              [](const Value&, const Value&, const Value&, Values states, const Constants&) { return states[1]; });
}

template <class Call>
Value leak(const Call& call, const Value& v, const Constants& c) {
  return call.v_reset ? v - c("v_reset") : v;
}

template <class Call>
TracedCell leaky(const Call& call, bool strict, Value (*inv_tau)(const Constants&)) {
  return make(call, strict, [&](const Value& x, Values states, const Constants& c) {
    const Value& v = states[0];
    return call.decay_input ? v + inv_tau(c) * (x - leak(call, v, c)) : v - inv_tau(c) * leak(call, v, c) + x;
  });
}

Value parabola(const Value& v, const Constants& c) { return c("a0") * (v - c("v_rest")) * (v - c("v_c")); }

}  // namespace

TracedCell traced_cell(const IfOptions& call, bool strict) {
  return make(call, strict, [](const Value& x, Values states, const Constants&) { return states[0] + x; });
}

TracedCell traced_cell(const LifOptions& call, bool strict) {
  return leaky(call, strict, [](const Constants& c) { return 1 / c("tau"); });
}

TracedCell traced_cell(const PlifCall& call, bool strict) {
  return leaky(call, strict, [](const Constants& c) { return sigmoid(c("w")); });
}

TracedCell traced_cell(const QifOptions& call, bool strict) {
  return make(call, strict, [](const Value& x, Values states, const Constants& c) {
    return states[0] + 1 / c("tau") * (x + parabola(states[0], c));
  });
}

TracedCell traced_cell(const EifOptions& call, bool strict) {
  return make(call, strict, [](const Value& x, Values states, const Constants& c) {
    const Value& v = states[0];
    const Value rise = c("delta_t") * exp(1 / c("delta_t") * (v - c("theta_rh")));
    return v + 1 / c("tau") * (x + c("v_rest") - v + rise);
  });
}

TracedCell traced_cell(const spikeforge::IzhikevichOptions& call, bool strict) {
  return make(
      call, strict,
      [](const Value& x, Values states, const Constants& c) {
        return states[0] + 1 / c("tau") * (x + parabola(states[0], c) - states[1]);
      },
      [](const Value& h, const Value& s, const Value&, Values states, const Constants& c) {
        const Value& w = states[1];
        return w + 1 / c("tau_w") * (c("a") * (h - c("v_rest")) - w) + c("b") * s;
      });
}

TracedCell traced_cell(const CubaLifCall& call, bool strict) {
  const auto current = [](const Value& x, Values states, const Constants& c) {
    return states[1] - 1 / c("tau_synapse") * states[1] + x;
  };
  return make(
      call, strict,
      [&](const Value& x, Values states, const Constants& c) {
        const Value& v = states[0];
        const Value inv_tau = 1 / c("tau_membrane"), i = current(x, states, c);
        return call.decay_input ? v + inv_tau * (i - leak(call, v, c)) : v - inv_tau * leak(call, v, c) + i;
      },
      [&](const Value&, const Value&, const Value& x, Values states, const Constants& c) {
        return current(x, states, c);
      });
}

}  // namespace spikeforge::nn
