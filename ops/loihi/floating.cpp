// Lava's floating-point neurons as neuron text: docs/neuron_text.md. In contrast to this library's own neurons they
// fire strictly above the threshold, and the reset is to zero.
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/loihi.h>

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
      // wait is the number of steps after this one in which v stays as it is.
      {"lif_refractory", R"(neuron lava_lif_refractory(x; u, v, wait; du, dv, bias, vth, period) {
  current = u * (1 - du) + x
  h = where(wait > 0, v, v * (1 - dv) + current + bias)
  s = spike_strict(h - vth, sigmoid)
  return s
  u' = current
  v' = select(s, 0, h)
  wait' = where(h > vth, period, maximum(wait - 1, 0))
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
                    "lava_neuron: name must be lif, ternary_lif, lif_reset or lif_refractory, but is ", name);
  return found->second;
}

}  // namespace spikeforge
