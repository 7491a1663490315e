// The leaky integrate-and-fire neurons of Loihi in its fixed-point arithmetic, bit for bit: a current u that wraps
// around at 24 bits, a voltage v that saturates, products rounded toward zero. One step, M = 2^23:
//   u = wrap(rtz(u (4096 - (du + 1)) / 4096) + 64 x)           once: above M less 2M, at -M and below more 2M
//   h = clip(rtz(v (4096 - dv) / 4096) + u + b, -M + 1, M - 1)  b = bias_mant 2^bias_exp, an arithmetic shift
//   s = 1 where h > 64 vth;  ternary: 1 where h > 64 vth_hi, -1 where h < 64 vth_lo
//   v = 0 where s, else h
// LoihiForm::reset sets u = v = 0 ahead of each step whose number t, counted from 1, is reset_offset modulo
// reset_interval; its state `phase` is t modulo reset_interval. LoihiForm::refractory leaves v as it is for
// refractory_period steps after a spike; its state `wait` is the number of remaining steps.
//
// Source: Lava's fixed-point models of LIF, TernaryLIF and LIFReset, and its floating-point one of LIFRefractory.
// Davies et al., IEEE Micro 38(1), 82 (2018) describes the chip.
//
// All sums are modulo 2^32. Within the widths of the hardware (x 16 bits, u and v 24), none of them overflows.
#pragma once

#include "csrc/neuron/portable.h"

namespace spikeforge {

enum class LoihiForm : unsigned char { plain, reset, refractory };

SPIKEFORGE_FN constexpr int loihi_states(LoihiForm form) { return form == LoihiForm::plain ? 2 : 3; }
SPIKEFORGE_FN constexpr int loihi_params(bool ternary, LoihiForm form) {
  return (ternary ? 6 : 5) + (form == LoihiForm::reset ? 2 : form == LoihiForm::refractory ? 1 : 0);
}

// A cell of cuda/multistep/multistep.cuh (neuron/cell.h has the interface), forward only. The CPU compiles it for
// several instruction sets, each with a different Variant, so that no two of them share a function.
template <bool ternary, LoihiForm form, class Variant = void> struct Loihi {
  static constexpr int n_inputs = 1, n_outputs = 1;
  static constexpr int n_states = loihi_states(form);
  enum State { u, v, counter };
  // vth is vth_hi if the neuron is ternary. The form's parameters follow: reset_interval and reset_offset, or
  // refractory_period.
  enum Param { du, dv, bias_mant, bias_exp, vth, vth_lo, first_of_form = ternary ? 6 : 5 };
  static constexpr int n_params = loihi_params(ternary, form);

  Loihi() = default;

  template <class Surrogate, class Options>
  SPIKEFORGE_FN Loihi(const int* p, const Surrogate&, const Options&) : Loihi(p) {}

  SPIKEFORGE_FN explicit Loihi(const int* p)
      : factor_u(static_cast<unsigned>(4096 - (p[du] + 1))),
        factor_v(static_cast<unsigned>(4096 - p[dv])),
        bias(p[bias_exp] >= 0 ? shifted_left(p[bias_mant], p[bias_exp]) : p[bias_mant] >> -p[bias_exp]),
        above(shifted_left(p[vth], 6)) {
    if constexpr (ternary) below = shifted_left(p[vth_lo], 6);
    if constexpr (form == LoihiForm::reset) {
      period = p[first_of_form];
      offset = p[first_of_form + 1] % period;
      offset += offset < 0 ? period : 0;
    }
    if constexpr (form == LoihiForm::refractory) period = p[first_of_form];
  }

  SPIKEFORGE_FN void initial(int* state) const {
    for (int s = 0; s < n_states; ++s) state[s] = 0;
  }

  SPIKEFORGE_FN void step(const int* x, int* state, int* y) const {
    constexpr int M = 1 << 23;
    if constexpr (form == LoihiForm::reset) {
      state[counter] = state[counter] >= period - 1 ? 0 : state[counter] + 1;
      const bool now = state[counter] == offset;
      state[u] = now ? 0 : state[u];
      state[v] = now ? 0 : state[v];
    }
    const int current = sum_modulo(decayed(state[u], factor_u), shifted_left(x[0], 6));
    state[u] = current > M ? current - 2 * M : current <= -M ? current + 2 * M : current;

    int h = sum_modulo(sum_modulo(decayed(state[v], factor_v), state[u]), bias);
    h = h > M - 1 ? M - 1 : h;
    h = h < -(M - 1) ? -(M - 1) : h;
    if constexpr (form == LoihiForm::refractory) h = state[counter] > 0 ? state[v] : h;

    int s = h > above ? 1 : 0;
    if constexpr (ternary) s -= h < below ? 1 : 0;
    state[v] = s != 0 ? 0 : h;
    if constexpr (form == LoihiForm::refractory) {
      const int left = state[counter] > 0 ? state[counter] - 1 : 0;
      state[counter] = s != 0 ? period : left;
    }
    y[0] = s;
  }

 private:
  // Returns the sum modulo 2^32 as two's complement.
  SPIKEFORGE_FN static int sum_modulo(int a, int b) {
    return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
  }
  SPIKEFORGE_FN static int shifted_left(int a, int bits) { return static_cast<int>(static_cast<unsigned>(a) << bits); }

  // Returns x * factor / 4096, rounded toward zero, for factor from 0 to 4096. With |x| = 4096 * high + low, the
  // magnitude is high * factor + (low * factor >> 12), neither of which needs more than 32 bits.
  SPIKEFORGE_FN static int decayed(int x, unsigned factor) {
    const unsigned magnitude = x < 0 ? 0u - static_cast<unsigned>(x) : static_cast<unsigned>(x);
    const unsigned result = (magnitude >> 12) * factor + ((magnitude & 4095u) * factor >> 12);
    return static_cast<int>(x < 0 ? 0u - result : result);
  }

  unsigned factor_u = 0, factor_v = 0;
  int bias = 0;
  int above = 0;  // the thresholds in units of v
  int below = 0;
  int period = 0, offset = 0;
};

}  // namespace spikeforge
