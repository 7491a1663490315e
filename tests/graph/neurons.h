// The predefined neurons, written as lambdas with the spelling of csrc/neuron.
#pragma once

#include "csrc/graph/trace.h"

#include <string>
#include <vector>

namespace spikeforge::test {

struct Variant {
  bool hard_reset = true, detach_reset = false, decay_input = true;

  std::string text() const {
    return std::string(hard_reset ? "hard" : "soft") + (detach_reset ? ", detached" : "") +
           (decay_input ? "" : ", undecayed input");
  }
};

namespace written {

using graph::Step;
using graph::Surrogate;
using graph::Value;

struct Fired {
  Value s, v;
};

inline Fired fire_and_reset(Value h, Value v_threshold, Value v_reset, const Surrogate& surrogate, Variant form) {
  const Value s = spike(h - v_threshold, surrogate);
  const Value seen = form.detach_reset ? detach(s) : s;
  return {s, form.hard_reset ? select(seen, v_reset, h) : h - select(seen, v_threshold, 0)};
}

inline Value charged(Value x, Value v, Value inv_tau, Value v_reset, Variant form) {
  const Value leak = v - (form.hard_reset ? v_reset : Value(0));
  return form.decay_input ? v + inv_tau * (x - leak) : v - inv_tau * leak + x;
}

inline Step leaky(Value x, Value v, Value inv_tau, Value v_threshold, Value v_reset, const Surrogate& surrogate,
                  Variant form) {
  const Value h = charged(x, v, inv_tau, v_reset, form);
  const Fired fired = fire_and_reset(h, v_threshold, v_reset, surrogate, form);
  return graph::step({fired.s}, {fired.v});
}

}  // namespace written

// Parameters in the order of the cell's enum Param.
inline graph::Cell written_neuron(const std::string& name, const graph::Surrogate& surrogate, Variant form) {
  using namespace written;
  const auto trace = [&](const std::vector<graph::State>& states, const std::vector<std::string>& params, auto lambda) {
    return graph::trace(name, {"x"}, states, params, lambda);
  };
  if (name == "integrate_and_fire")
    return trace({"v"}, {"v_threshold", "v_reset"}, [&](Value x, Value v, Value v_threshold, Value v_reset) {
      const Fired fired = fire_and_reset(v + x, v_threshold, v_reset, surrogate, form);
      return graph::step({fired.s}, {fired.v});
    });
  if (name == "lif")
    return trace({"v"}, {"tau", "v_threshold", "v_reset"},
                 [&](Value x, Value v, Value tau, Value v_threshold, Value v_reset) {
                   return leaky(x, v, 1 / tau, v_threshold, v_reset, surrogate, form);
                 });
  if (name == "plif")
    return trace({"v"}, {"w", "v_threshold", "v_reset"},
                 [&](Value x, Value v, Value w, Value v_threshold, Value v_reset) {
                   return leaky(x, v, 1 / (1 + exp(-w)), v_threshold, v_reset, surrogate, form);
                 });
  if (name == "qif")
    return trace({"v"}, {"tau", "v_c", "a0", "v_threshold", "v_rest", "v_reset"},
                 [&](Value x, Value v, Value tau, Value v_c, Value a0, Value v_threshold, Value v_rest, Value v_reset) {
                   const Value h = v + 1 / tau * (x + a0 * (v - v_rest) * (v - v_c));
                   const Fired fired = fire_and_reset(h, v_threshold, v_reset, surrogate, form);
                   return graph::step({fired.s}, {fired.v});
                 });
  if (name == "eif")
    return trace({"v"}, {"tau", "delta_t", "theta_rh", "v_threshold", "v_rest", "v_reset"},
                 [&](Value x, Value v, Value tau, Value delta_t, Value theta_rh, Value v_threshold, Value v_rest,
                     Value v_reset) {
                   const Value e = exp((v - theta_rh) * (1 / delta_t));
                   const Value h = v + 1 / tau * (x + v_rest - v + delta_t * e);
                   const Fired fired = fire_and_reset(h, v_threshold, v_reset, surrogate, form);
                   return graph::step({fired.s}, {fired.v});
                 });
  if (name == "adaptive_lif")
    return trace({"v", "a"}, {"tau", "v_threshold", "v_reset", "decay", "b"},
                 [&](Value x, Value v, Value a, Value tau, Value v_threshold, Value v_reset, Value decay, Value b) {
                   const Value h = charged(x, v, 1 / tau, v_reset, form);
                   const Fired fired = fire_and_reset(h, v_threshold + b * a, v_reset, surrogate, form);
                   return graph::step({fired.s}, {fired.v, decay * a + fired.s});
                 });
  return trace({"v", "w"}, {"tau", "v_c", "a0", "v_threshold", "v_rest", "w_rest", "v_reset", "tau_w", "a", "b"},
               [&](Value x, Value v, Value w, Value tau, Value v_c, Value a0, Value v_threshold, Value v_rest, Value,
                   Value v_reset, Value tau_w, Value a, Value b) {
                 const Value h = v + 1 / tau * (x + a0 * (v - v_rest) * (v - v_c) - w);
                 const Fired fired = fire_and_reset(h, v_threshold, v_reset, surrogate, form);
                 return graph::step({fired.s}, {fired.v, w + 1 / tau_w * (a * (h - v_rest) - w) + b * fired.s});
               });
}

}  // namespace spikeforge::test
