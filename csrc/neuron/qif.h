// Quadratic integrate-and-fire.
//   H = V + (X + a0 (V - Vrest)(V - Vc)) / tau
//   dH/dX = 1/tau        dH/dV = 1 + a0 (2 V - Vrest - Vc) / tau
//   dH/d(1/tau) = X + a0 (V - Vrest)(V - Vc)        dH/da0 = (V - Vrest)(V - Vc) / tau
//   dH/dVrest = -a0 (V - Vc) / tau                  dH/dVc = -a0 (V - Vrest) / tau
// Source: Fang et al., Science Advances 9, eadi1480 (2023). V is the voltage at the start of the step throughout: the
// usual text of the derivation has V[1] where dL/dV[0] needs V[0].
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

template <class F, class Options> struct QIF {
  static constexpr int n_states = 1;
  static constexpr int kept_values = 3;  // values of a step that its derivative reads: H, V and X
  static constexpr bool adapts = false;
  enum Param { tau, v_c, a0, v_threshold, v_rest, v_reset, n_params };

  SPIKEFORGE_FN QIF(const F* p, const Options&)
      : inv_tau(F(1) / p[tau]), critical(p[v_c]), curvature(p[a0]), rest(p[v_rest]) {}

  SPIKEFORGE_FN F charge(F x, const F* state) const {
    const F v = state[0];
    return v + inv_tau * (x + curvature * (v - rest) * (v - critical));
  }

  // grad_param[tau] accumulates the gradient of 1/tau until finish().
  SPIKEFORGE_FN void charge_vjp(F x, const F* state, F grad_h, F& grad_x, F* grad_state, F* grad_param) const {
    const F from_rest = state[0] - rest;
    const F from_critical = state[0] - critical;
    const F grad_scaled = grad_h * inv_tau;
    const F grad_curved = grad_scaled * curvature;
    grad_x = grad_scaled;
    grad_state[0] = fma(grad_curved, from_rest + from_critical, grad_h);
    grad_param[tau] = fma(grad_h, x + curvature * from_rest * from_critical, grad_param[tau]);
    grad_param[a0] = fma(grad_scaled, from_rest * from_critical, grad_param[a0]);
    grad_param[v_rest] = fma(-grad_curved, from_critical, grad_param[v_rest]);
    grad_param[v_c] = fma(-grad_curved, from_rest, grad_param[v_c]);
  }

  SPIKEFORGE_FN void finish(F* grad_param) const { grad_param[tau] = -square(inv_tau) * grad_param[tau]; }

 protected:
  F inv_tau, critical, curvature, rest;
};

}  // namespace spikeforge
