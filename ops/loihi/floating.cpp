// Lava's floating-point neurons as neuron text: docs/neuron_text.md. In contrast to the other neurons of this library,
// they fire strictly above the threshold and reset to zero.
#include "ops/common/library.h"
#include "ops/loihi.h"

#include <c10/util/Exception.h>

#include <map>

namespace spikeforge {
namespace {

const std::map<std::string, std::string, std::less<>>& texts() {
  static const std::map<std::string, std::string, std::less<>> texts = {
      {"lif", R"(neuron lava_lif(x; u, v; du, dv, bias, vth) {
  current = u * (1 - du) + x
  h = v * (1 - dv) + current + bias
  s = spike_strict(h - vth, sigmoid)
  return s
  u' = current
  v' = select(s, 0, h)
}
)"},
      {"ternary_lif", R"(neuron lava_ternary_lif(x; u, v; du, dv, bias, vth_hi, vth_lo) {
  current = u * (1 - du) + x
  h = v * (1 - dv) + current + bias
  up = spike_strict(h - vth_hi, sigmoid)
  down = spike_strict(vth_lo - h, sigmoid)
  return up - down
  u' = current
  v' = select(up, 0, select(down, 0, h))
}
)"},
      // phase is the number of the step, counted from 1, modulo interval.
      {"lif_reset", R"(neuron lava_lif_reset(x; u, v, phase; du, dv, bias, vth, interval, offset) {
  next = phase + 1
  now = where(next >= interval, 0, next)
  again = now == remainder(offset, interval)
  current = where(again, 0, u) * (1 - du) + x
  h = where(again, 0, v) * (1 - dv) + current + bias
  s = spike_strict(h - vth, sigmoid)
  return s
  u' = current
  v' = select(s, 0, h)
  phase' = now
}
)"},
      // wait is the number of steps after this one in which v does not change.
      {"lif_refractory", R"(neuron lava_lif_refractory(x; u, v, wait; du, dv, bias, vth, period) {
  current = u * (1 - du) + x
  h = where(wait > 0, v, v * (1 - dv) + current + bias)
  s = spike_strict(h - vth, sigmoid)
  return s
  u' = current
  v' = select(s, 0, h)
  wait' = where(h > vth, period, maximum(wait - 1, 0))
}
)"},
      // excess is the threshold above theta_0, which a spike increases. A spike adds 2 theta to r.
      {"atrlif", R"(neuron lava_atrlif(x; u, v, excess, r; du, dv, dtheta, dr, theta_0, theta_step, bias) {
  current = u * (1 - du) + x
  h = v * (1 - dv) + current + bias
  above = excess * (1 - dtheta)
  theta = theta_0 + above
  refractory = r * (1 - dr)
  s = spike(h - refractory - theta, sigmoid)
  return s
  u' = current
  v' = h
  excess' = above + theta_step * s
  r' = refractory + 2 * theta * s
}
)"},
      // It fires above vth when im crosses 0 from below.
      {"rf", R"(neuron lava_rf(x_re, x_im; re, im; sin_decay, cos_decay, vth) {
  re_next = cos_decay * re - sin_decay * im + x_re
  im_next = sin_decay * re + cos_decay * im + x_im
  above = spike(re_next - vth, sigmoid)
  return where(im_next >= 0 and im < 0, above, 0)
  re' = re_next
  im' = im_next
}
)"},
      {"sigma", R"(neuron lava_sigma(x; sigma) {
  next = sigma + x
  return next
  sigma' = next
}
)"},
      // A change below vth is stored in the residue; the gradient is that of the whole change.
      {"delta", R"(neuron lava_delta(x; act, residue; vth) {
  change = x - act + residue
  sent = custom_gradient(where(abs(change) >= vth, change, 0), change, 1)
  return sent
  act' = x
  residue' = change - sent
}
)"},
      {"sigma_delta", R"(neuron lava_sigma_delta(x; sigma, act, residue; bias, vth) {
  next = sigma + x
  active = relu(next + bias)
  change = active - act + residue
  sent = custom_gradient(where(abs(change) >= vth, change, 0), change, 1)
  return sent
  sigma' = next
  act' = active
  residue' = change - sent
}
)"},
      {"sigma_delta_unit", R"(neuron lava_sigma_delta_unit(x; sigma, act, residue; bias, vth) {
  next = sigma + x
  active = next + bias
  change = active - act + residue
  sent = custom_gradient(where(abs(change) >= vth, change, 0), change, 1)
  return sent
  sigma' = next
  act' = active
  residue' = change - sent
}
)"}};
  return texts;
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("lava_neuron", [](std::string_view name) { return lava_neuron(name); });
}

}  // namespace

const std::string& lava_neuron(std::string_view name) {
  const auto found = texts().find(name);
  TORCH_CHECK_VALUE(found != texts().end(),
                    "lava_neuron: name must be lif, ternary_lif, lif_reset, lif_refractory, atrlif, rf, sigma, delta, "
                    "sigma_delta or sigma_delta_unit, but is ",
                    name);
  return found->second;
}

}  // namespace spikeforge
