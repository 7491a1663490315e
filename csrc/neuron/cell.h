// A cell: the pure function of one step, (x, state, params) -> (outputs, next state), with its vjp. It is the only
// interface between a multistep loop and a neuron. A SpikingCell consists of a neuron's charge (and recovery, and
// adaptation of the threshold), the shared fire and reset, and a surrogate.
//
// The interface for loops:
//   n_inputs, n_outputs, n_states, n_params
//   mixes_params                       true if finish() computes the gradient of a parameter from those of others
//   Cell(params, surrogate, options)   computes the values that are the same in all steps, once per neuron
//   initial(state)                     the initial states if none are given
//   step(x, state, y)                  one step, state in place
//   vjp(x, state, grad_y, grad_state, grad_x, grad_param)
//                                      `state` is the state before the step; grad_state is the gradient of the next
//                                      state on entry, and the gradient of `state` on exit;
//                                      overwrites grad_x, and adds to grad_param
//   finish(grad_initial, grad_param)   makes grad_param final; grad_initial is the gradient of the states from
//                                      `initial`, 0 for given states
#pragma once

#include "csrc/neuron/reset.h"

namespace spikeforge {

template <class F, class Neuron, class Surrogate, class Options> struct SpikingCell {
  static constexpr int n_inputs = 1;
  static constexpr int n_outputs = 1;
  static constexpr int n_states = Neuron::n_states;
  static constexpr int n_params = Neuron::n_params;
  static constexpr bool mixes_params = false;
  static constexpr bool recovers = n_states == 2;

  SPIKEFORGE_FN SpikingCell(const F* p, const Surrogate& surrogate, const Options& o)
      : options(o),
        surrogate(surrogate),
        neuron(p, o),
        v_threshold(p[Neuron::v_threshold]),
        v_reset(p[Neuron::v_reset]) {
    if constexpr (recovers) w_initial = Neuron::initial_recovery(p);
  }

  SPIKEFORGE_FN void initial(F* state) const {
    state[0] = options.hard_reset ? v_reset : F(0);
    if constexpr (recovers) state[1] = w_initial;
  }

  SPIKEFORGE_FN void step(const F* x, F* state, F* y) const {
    const F h = neuron.charge(x[0], state);
    const Fired<F> fired = fire_and_reset(h, threshold(state), v_reset, surrogate, options);
    y[0] = fired.spike;
    state[0] = fired.voltage;
    if constexpr (recovers) state[1] = neuron.recover(h, fired.spike, state[1]);
  }

  SPIKEFORGE_FN void vjp(const F* x, const F* state, const F* grad_y, F* grad_state, F* grad_x, F* grad_param) const {
    const F h = neuron.charge(x[0], state);
    const F theta = threshold(state);
    const F s = fire_and_reset(h, theta, v_reset, surrogate, options).spike;
    const F slope = surrogate.gradient(h - theta);
    const F grad_v = grad_state[0];

    // The part that does not depend on grad_state is first: a time-parallel backward pass computes it once.
    const F dv_ds = options.hard_reset ? v_reset - h : -theta;
    F dv_dh = options.hard_reset ? F(1) - s : F(1);
    if (!options.detach_reset) dv_dh = fma(dv_ds, slope, dv_dh);
    F grad_h = fma(grad_v, dv_dh, grad_y[0] * slope);

    F grad_s = grad_y[0];
    if (!options.detach_reset) grad_s = fma(grad_v, dv_ds, grad_s);
    if constexpr (recovers) {
      const F grad_w = grad_state[1];
      grad_h = fma(grad_w, neuron.dw_dh(slope), grad_h);
      grad_s = fma(grad_w, neuron.dw_ds(), grad_s);
      neuron.recover_vjp(h, s, state[1], grad_w, grad_state[1], grad_param);
    }
    const F grad_fire = grad_s * slope;
    grad_param[Neuron::v_threshold] = grad_param[Neuron::v_threshold] - grad_fire;
    if (options.hard_reset) {
      grad_param[Neuron::v_reset] = fma(grad_v, s, grad_param[Neuron::v_reset]);
    } else {
      grad_param[Neuron::v_threshold] = fma(-grad_v, s, grad_param[Neuron::v_threshold]);
    }
    if constexpr (Neuron::adapts)
      neuron.threshold_vjp(state, options.hard_reset ? -grad_fire : fma(-grad_v, s, -grad_fire), grad_state[1],
                           grad_param);
    neuron.charge_vjp(x[0], state, grad_h, grad_x[0], grad_state, grad_param);
  }

  SPIKEFORGE_FN void finish(const F* grad_initial, F* grad_param) const {
    neuron.finish(grad_param);
    if (options.hard_reset) grad_param[Neuron::v_reset] = grad_param[Neuron::v_reset] + grad_initial[0];
    if constexpr (recovers) Neuron::initial_recovery_vjp(grad_initial[1], grad_param);
  }

 private:
  SPIKEFORGE_FN F threshold(const F* state) const {
    if constexpr (Neuron::adapts)
      return neuron.threshold(v_threshold, state);
    else
      return v_threshold;
  }

  Options options;
  Surrogate surrogate;
  Neuron neuron;
  F v_threshold, v_reset;
  F w_initial{};
};

}  // namespace spikeforge
