// Parametric leaky integrate-and-fire: a LIF whose 1/tau = sigmoid(w) is learnt through w.
//   dH/dw = dH/d(1/tau) * sigmoid(w) (1 - sigmoid(w)), with dH/d(1/tau) = X - (V - Vr) (decay_input) or -(V - Vr)
// Source: Fang et al., ICCV 2021; derivation in Science Advances 9, eadi1480 (2023).
#pragma once

#include "csrc/neuron/lif.h"
#include "csrc/neuron/surrogate.h"

namespace spikeforge {

template <class F, class Options> struct PLIF : LIF<F, Options> {
  using Base = LIF<F, Options>;
  enum Param { w = Base::tau, v_threshold = Base::v_threshold, v_reset = Base::v_reset, n_params = Base::n_params };

  SPIKEFORGE_FN PLIF(const F* p, const Options& o) : Base(logistic(p[w]), p, o) {}

  SPIKEFORGE_FN void finish(F* grad_param) const {
    grad_param[w] = grad_param[w] * (this->inv_tau * (F(1) - this->inv_tau));
  }
};

}  // namespace spikeforge
