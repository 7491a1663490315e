// Leaky integrate-and-fire with an adaptive threshold.
//   H  = as LIF
//   S  = Θ(H - θ),  θ = v_threshold + b A        dθ/dv_threshold = 1        dθ/db = A        dθ/dA = b
//   A' = decay A + S                             dA'/dA = decay             dA'/ddecay = A   dA'/dS = 1
// A starts at 0. A soft reset subtracts θ, the threshold that was crossed. `detach_reset` does not detach the S of A'.
// Source: Bellec et al., NeurIPS 31 (2018), the LSNN's adaptive neuron, with decay = exp(-dt/tau_a) and A in units of a
// spike.
#pragma once

#include "csrc/neuron/lif.h"

namespace spikeforge {

template <class F, class Options> struct AdaptiveLIF : LIF<F, Options> {
  using Base = LIF<F, Options>;
  static constexpr int n_states = 2;
  static constexpr int kept_values = 3;  // values of a step that its derivative reads: H, V and A
  static constexpr bool adapts = true;
  enum Param {
    tau = Base::tau,
    v_threshold = Base::v_threshold,
    v_reset = Base::v_reset,
    decay = Base::n_params,
    b,
    n_params
  };

  SPIKEFORGE_FN AdaptiveLIF(const F* p, const Options& o) : Base(p, o), retained(p[decay]), increment(p[b]) {}

  SPIKEFORGE_FN F threshold(F v_threshold, const F* state) const { return v_threshold + increment * state[1]; }

  SPIKEFORGE_FN void threshold_vjp(const F* state, F grad, F& grad_a, F* grad_param) const {
    grad_a = fma(increment, grad, grad_a);
    grad_param[b] = fma(grad, state[1], grad_param[b]);
  }

  // Returns A before the first step.
  SPIKEFORGE_FN static F initial_recovery(const F*) { return F(0); }
  SPIKEFORGE_FN static void initial_recovery_vjp(F, F*) {}

  // Returns A' from H, S and A.
  SPIKEFORGE_FN F recover(F, F s, F a) const { return retained * a + s; }
  SPIKEFORGE_FN F dw_ds() const { return F(1); }
  SPIKEFORGE_FN F dw_dh(F slope) const { return slope; }
  SPIKEFORGE_FN void recover_vjp(F, F, F a, F grad_next, F& grad_a, F* grad_param) const {
    grad_a = retained * grad_next;
    grad_param[decay] = fma(grad_next, a, grad_param[decay]);
  }

 protected:
  F retained, increment;
};

}  // namespace spikeforge
