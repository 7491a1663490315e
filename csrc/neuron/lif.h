// Leaky integrate-and-fire.
//   decay_input   H = V + (X - (V - Vr)) / tau     dH/dX = 1/tau    dH/d(1/tau) = X - (V - Vr)
//   otherwise     H = V - (V - Vr) / tau + X       dH/dX = 1        dH/d(1/tau) = -(V - Vr)
//   both          dH/dV = 1 - 1/tau                dH/dVr = 1/tau
// Source: Fang et al., Science Advances 9, eadi1480 (2023). Vr is v_reset, or 0 under soft reset.
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

template <class F, class Options> struct LIF {
  static constexpr int n_states = 1;
  static constexpr int kept_values = 2;  // values of a step that its derivative reads: H and V
  static constexpr bool adapts = false;
  enum Param { tau, v_threshold, v_reset, n_params };

  SPIKEFORGE_FN LIF(const F* p, const Options& o) : LIF(F(1) / p[tau], p, o) {}

  SPIKEFORGE_FN F charge(F x, const F* state) const {
    const F v = state[0];
    const F leak = v - v_rest;
    if (options.decay_input) return v + inv_tau * (x - leak);
    return v - inv_tau * leak + x;
  }

  // grad_param[tau] accumulates the gradient of 1/tau until finish().
  SPIKEFORGE_FN void charge_vjp(F x, const F* state, F grad_h, F& grad_x, F* grad_state, F* grad_param) const {
    const F leak = state[0] - v_rest;
    const F grad_scaled = grad_h * inv_tau;
    grad_x = options.decay_input ? grad_scaled : grad_h;
    grad_state[0] = grad_h * (F(1) - inv_tau);
    grad_param[tau] = fma(grad_h, options.decay_input ? x - leak : -leak, grad_param[tau]);
    if (options.hard_reset) grad_param[v_reset] = grad_param[v_reset] + grad_scaled;
  }

  // d(1/tau)/dtau = -1/tau^2
  SPIKEFORGE_FN void finish(F* grad_param) const { grad_param[tau] = -square(inv_tau) * grad_param[tau]; }

 protected:
  SPIKEFORGE_FN LIF(F inv_tau, const F* p, const Options& o)
      : options(o), inv_tau(inv_tau), v_rest(o.hard_reset ? p[v_reset] : F(0)) {}

  Options options;
  F inv_tau, v_rest;
};

}  // namespace spikeforge
