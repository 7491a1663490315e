// Exponential integrate-and-fire.
//   H = V + (X + Vrest - V + ΔT E) / tau,   E = exp((V - θrh) / ΔT)
//   dH/dX = 1/tau        dH/dV = 1 + (E - 1) / tau        dH/dVrest = 1/tau
//   dH/d(1/tau) = X + Vrest - V + ΔT E      dH/dθrh = -E / tau      dH/dΔT = E (1 - (V - θrh) / ΔT) / tau
// Source: Fang et al., Science Advances 9, eadi1480 (2023).
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

template <class F, class Options> struct EIF {
  static constexpr int n_states = 1;
  static constexpr int kept_values = 4;  // values of a step that its derivative reads: H, V, X and E
  static constexpr bool adapts = false;
  enum Param { tau, delta_t, theta_rh, v_threshold, v_rest, v_reset, n_params };

  SPIKEFORGE_FN EIF(const F* p, const Options&)
      : inv_tau(F(1) / p[tau]),
        sharpness(p[delta_t]),
        inv_sharpness(F(1) / p[delta_t]),
        rheobase(p[theta_rh]),
        rest(p[v_rest]) {}

  SPIKEFORGE_FN F charge(F x, const F* state) const {
    const F v = state[0];
    return v + inv_tau * (x + rest - v + sharpness * exp((v - rheobase) * inv_sharpness));
  }

  // grad_param[tau] accumulates the gradient of 1/tau until finish().
  SPIKEFORGE_FN void charge_vjp(F x, const F* state, F grad_h, F& grad_x, F* grad_state, F* grad_param) const {
    const F v = state[0];
    const F distance = (v - rheobase) * inv_sharpness;
    const F e = exp(distance);
    const F grad_scaled = grad_h * inv_tau;
    grad_x = grad_scaled;
    grad_state[0] = fma(grad_scaled, e - F(1), grad_h);
    grad_param[tau] = fma(grad_h, x + rest - v + sharpness * e, grad_param[tau]);
    grad_param[delta_t] = fma(grad_scaled, e * (F(1) - distance), grad_param[delta_t]);
    grad_param[theta_rh] = fma(-grad_scaled, e, grad_param[theta_rh]);
    grad_param[v_rest] = grad_param[v_rest] + grad_scaled;
  }

  SPIKEFORGE_FN void finish(F* grad_param) const { grad_param[tau] = -square(inv_tau) * grad_param[tau]; }

 protected:
  F inv_tau, sharpness, inv_sharpness, rheobase, rest;
};

}  // namespace spikeforge
