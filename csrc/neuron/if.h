// Integrate-and-fire.
//   H = V + X            dH/dX = 1            dH/dV = 1
// Source: Fang et al., Science Advances 9, eadi1480 (2023).
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

template <class F, class Options> struct IF {
  static constexpr int n_states = 1;
  static constexpr int kept_values = 2;  // values of a step that its derivative reads: H and V
  static constexpr bool adapts = false;
  enum Param { v_threshold, v_reset, n_params };

  SPIKEFORGE_FN IF(const F*, const Options&) {}

  SPIKEFORGE_FN F charge(F x, const F* state) const { return state[0] + x; }

  SPIKEFORGE_FN void charge_vjp(F, const F*, F grad_h, F& grad_x, F* grad_state, F*) const {
    grad_x = grad_h;
    grad_state[0] = grad_h;
  }

  SPIKEFORGE_FN void finish(F*) const {}
};

}  // namespace spikeforge
