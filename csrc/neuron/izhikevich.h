// Izhikevich neuron: a quadratic charge and a recovery variable W.
//   H  = V + (X + a0 (V - Vrest)(V - Vc) - W) / tau      as QIF, and dH/dW = -1/tau
//   Z  = W + (a (H - Vrest) - W) / tau_w                 dZ/dH = a / tau_w        dZ/dW = 1 - 1/tau_w
//   W' = Z + b S                                         dW'/dS = b
//   dZ/da = (H - Vrest) / tau_w        dZ/dVrest = -a / tau_w        dZ/d(1/tau_w) = a (H - Vrest) - W
// W starts at w_rest, which has no other use. `detach_reset` does not detach b S.
// Source: Fang et al., Science Advances 9, eadi1480 (2023). dL/dW[t] includes the direct term from W[t] itself as an
// output, which the usual text of the derivation omits.
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

template <class F, class Options> struct Izhikevich {
  static constexpr int n_states = 2;
  static constexpr int kept_values = 5;  // values of a step that its derivative reads: H, V, W, X and S
  static constexpr bool adapts = false;
  enum Param { tau, v_c, a0, v_threshold, v_rest, w_rest, v_reset, tau_w, a, b, n_params };

  SPIKEFORGE_FN Izhikevich(const F* p, const Options&)
      : inv_tau(F(1) / p[tau]),
        inv_tau_w(F(1) / p[tau_w]),
        critical(p[v_c]),
        curvature(p[a0]),
        rest(p[v_rest]),
        coupling(p[a]),
        jump(p[b]) {}

  SPIKEFORGE_FN F charge(F x, const F* state) const {
    const F v = state[0];
    return v + inv_tau * (x + curvature * (v - rest) * (v - critical) - state[1]);
  }

  // Returns W before the first step.
  SPIKEFORGE_FN static F initial_recovery(const F* p) { return p[w_rest]; }
  SPIKEFORGE_FN static void initial_recovery_vjp(F grad, F* grad_param) {
    grad_param[w_rest] = grad_param[w_rest] + grad;
  }

  // Returns W' from H, S and W.
  SPIKEFORGE_FN F recover(F h, F s, F w) const { return w + inv_tau_w * (coupling * (h - rest) - w) + jump * s; }

  SPIKEFORGE_FN F dw_ds() const { return jump; }
  // Returns dW'/dH, including the dependence through S; `slope` is dS/dH.
  SPIKEFORGE_FN F dw_dh(F slope) const { return fma(jump, slope, inv_tau_w * coupling); }

  // Computes the gradients of W' except those with respect to H and S. grad_param[tau_w] accumulates the gradient of
  // 1/tau_w until finish().
  SPIKEFORGE_FN void recover_vjp(F h, F s, F w, F grad_next, F& grad_w, F* grad_param) const {
    const F grad_scaled = grad_next * inv_tau_w;
    const F from_rest = h - rest;
    grad_w = fma(-inv_tau_w, grad_next, grad_next);
    grad_param[tau_w] = fma(grad_next, coupling * from_rest - w, grad_param[tau_w]);
    grad_param[a] = fma(grad_scaled, from_rest, grad_param[a]);
    grad_param[b] = fma(grad_next, s, grad_param[b]);
    grad_param[v_rest] = fma(-grad_scaled, coupling, grad_param[v_rest]);
  }

  // grad_param[tau] accumulates the gradient of 1/tau until finish(). On entry, grad_state[1] has the grad_w of
  // recover_vjp.
  SPIKEFORGE_FN void charge_vjp(F x, const F* state, F grad_h, F& grad_x, F* grad_state, F* grad_param) const {
    const F from_rest = state[0] - rest;
    const F from_critical = state[0] - critical;
    const F grad_scaled = grad_h * inv_tau;
    const F grad_curved = grad_scaled * curvature;
    grad_x = grad_scaled;
    grad_state[0] = fma(grad_curved, from_rest + from_critical, grad_h);
    grad_state[1] = fma(-inv_tau, grad_h, grad_state[1]);
    grad_param[tau] = fma(grad_h, x + curvature * from_rest * from_critical - state[1], grad_param[tau]);
    grad_param[a0] = fma(grad_scaled, from_rest * from_critical, grad_param[a0]);
    grad_param[v_rest] = fma(-grad_curved, from_critical, grad_param[v_rest]);
    grad_param[v_c] = fma(-grad_curved, from_rest, grad_param[v_c]);
  }

  SPIKEFORGE_FN void finish(F* grad_param) const {
    grad_param[tau] = -square(inv_tau) * grad_param[tau];
    grad_param[tau_w] = -square(inv_tau_w) * grad_param[tau_w];
  }

 protected:
  F inv_tau, inv_tau_w, critical, curvature, rest, coupling, jump;
};

}  // namespace spikeforge
