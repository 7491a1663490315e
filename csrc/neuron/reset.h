// Fire and reset, shared by all neurons.
//
//   S = Θ(H - v_threshold), Θ(0) = 1; NaN does not fire
//   hard reset   V = v_reset where S, else H         dV/dH = 1 - S      dV/dS = v_reset - H
//   soft reset   V = H - v_threshold S               dV/dH = 1          dV/dS = -v_threshold
// Under detach_reset, dV/dS is 0. With `spiking=False`, S is the surrogate's primitive P(H - v_threshold), and a
// hard reset is the smooth S v_reset + (1 - S) H.
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

template <class F> struct Fired {
  F spike;    // S
  F voltage;  // V, after the reset
};

template <class F, class Surrogate, class Options>
SPIKEFORGE_FN Fired<F> fire_and_reset(F h, F v_threshold, F v_reset, const Surrogate& surrogate,
                                      const Options& options) {
  if (options.spiking) {
    const auto fires = h >= v_threshold;
    // A selection is exact at H = ∞, where the products of the formula would be NaN.
    const F voltage = options.hard_reset ? select(fires, v_reset, h) : h - select(fires, v_threshold, F(0));
    return {select(fires, F(1), F(0)), voltage};
  }
  const F s = surrogate.primitive(h - v_threshold);
  return {s, options.hard_reset ? s * v_reset + (F(1) - s) * h : h - v_threshold * s};
}

}  // namespace spikeforge
