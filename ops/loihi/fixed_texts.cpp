// Fixed-point neurons as neuron text on floating-point tensors of integer values: the results equal the integer
// arithmetic, and rounding and wraps have a straight-through derivative.
//
// float32 is exact. A state is split at 12 bits before it decays, so that every product stays within 2^24; the sums
// have at most 24 bits while |x| <= 2^17, or exceed 2^24 only before a voltage saturates.
#include "ops/common/library.h"
#include "ops/loihi.h"
#include "ops/loihi/neuron_call.h"
#include "ops/multistep/surrogate.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spikeforge {
namespace ops {
namespace {

// Writes name = state keep / 4096, rounded toward zero, with the derivative of the unrounded value.
std::string decayed(std::string_view name, std::string_view state, std::string_view keep) {
  return fmt::format(R"(
  {0}_high = trunc({1} * 0.000244140625)
  {0}_low = {1} - 4096 * {0}_high
  {0} = custom_gradient({0}_high * {2} + trunc({0}_low * {2} * 0.000244140625), {1}, {2} * 0.000244140625, {2}, {1} * 0.000244140625))",
                     name, state, keep);
}

// Writes the current u, which wraps around at 24 bits, and the voltage `charged`, which saturates, from the states
// before the step.
std::string charged(std::string_view u, std::string_view v) {
  return "\n  keep_u = 4095 - du\n  keep_v = 4096 - dv" + decayed("u_kept", u, "keep_u") +
         decayed("v_kept", v, "keep_v") + R"(
  sum = u_kept + 64 * custom_gradient(trunc(x), x, 1)
  current = where(sum > 8388608, sum - 16777216, where(sum <= -8388608, sum + 16777216, sum))
  charged = clamp(v_kept + current + bias_mant, -8388607, 8388607))";
}

// Writes the argument of the surrogate for a distance above a threshold in units of `unit`: the distance relative to
// the threshold.
std::string in_thresholds(std::string_view distance, std::string_view threshold, std::string_view unit) {
  return fmt::format("({}) * detach(1 / ({} * maximum(abs({}), 1)))", distance, unit, threshold);
}

std::string fired(const char* name, const char* distance, const char* threshold, const std::string& surrogate) {
  return fmt::format("\n  {} = spike_strict({}, {})", name, in_thresholds(distance, threshold, "64"), surrogate);
}

// Loihi 2's adaptive threshold, which rises by theta_step at a spike, and a refractory state r, to which 2 theta is
// added. `excess` is the threshold beyond 64 theta_0.
std::string atrlif_text(const std::string& surrogate) {
  return "neuron loihi_atrlif(x; u, v, excess, r; du, dv, dtheta, dr, theta_0, theta_step, bias_mant) {" +
         charged("u", "v") + "\n  keep_theta = 4096 - dtheta\n  keep_r = 4096 - dr" +
         decayed("excess_kept", "excess", "keep_theta") + decayed("r_kept", "r", "keep_r") +
         "\n  theta = 64 * theta_0 + excess_kept\n  s = spike(" +
         in_thresholds("charged - r_kept - theta", "theta_0", "64") + ", " + surrogate + R"()
  return s
  u' = current
  v' = charged
  excess' = excess_kept + 64 * theta_step * s
  r' = r_kept + 2 * theta * s
}
)";
}

// Resonate and fire: (re, im) rotates and decays by the 12-bit numbers cos_decay and sin_decay, and fires above vth
// when im crosses 0 from below. gain is 2^state_exp.
std::string rf_text(const std::string& surrogate) {
  return "neuron loihi_rf(x_re, x_im; re, im; sin_decay, cos_decay, vth, gain) {" +
         decayed("re_cos", "re", "cos_decay") + decayed("im_sin", "im", "sin_decay") +
         decayed("re_sin", "re", "sin_decay") + decayed("im_cos", "im", "cos_decay") + R"(
  re_next = clamp(re_cos - im_sin + gain * custom_gradient(trunc(x_re), x_re, 1), -8388607, 8388607)
  im_next = clamp(re_sin + im_cos + gain * custom_gradient(trunc(x_im), x_im, 1), -8388607, 8388607)
  above = spike()" +
         in_thresholds("re_next - vth", "vth", "1") + ", " + surrogate + R"()
  return where(im_next >= 0 and im < 0, above, 0)
  re' = re_next
  im' = im_next
}
)";
}

// The sent part of a change: the whole change if it is at least vth, with a straight-through derivative otherwise.
constexpr const char* sent = R"(
  change = act_next - act + residue
  sent = custom_gradient(where(abs(change) >= vth, change, 0), change, 1)
  shifted = sent / unit
  return custom_gradient(floor(shifted), shifted, 1)
  act' = act_next
  residue' = change - sent
)";

// gain is 2^(spike_exp + state_exp), unit 2^state_exp.
std::string delta_text() {
  return std::string(
             "neuron loihi_delta(x; act, residue; vth, gain, unit) {\n"
             "  act_next = gain * custom_gradient(trunc(x), x, 1)") +
         sent + "}\n";
}

std::string sigma_delta_text(bool rectified) {
  return fmt::format(R"(neuron loihi_sigma_delta{}(x; sigma, act, residue; bias, vth, unit) {{
  sigma_next = sigma + custom_gradient(trunc(x), x, 1)
  act_next = {}{}  sigma' = sigma_next
}}
)",
                     rectified ? "" : "_unit", rectified ? "relu(sigma_next + bias)" : "sigma_next + bias", sent);
}

}  // namespace

std::string surrogate_text(const char* op, std::string_view name, c10::ArrayRef<double> args) {
  const Surrogate checked = parse_surrogate(op, name, args);
  if (args.empty()) return std::string(name_of(checked.kind));
  return fmt::format("{}({})", name_of(checked.kind), fmt::join(args, ", "));
}

std::string fixed_lif_text(const LoihiCell& cell, const std::string& surrogate, bool detach_reset) {
  const bool resets = cell.form == LoihiForm::reset, waits = cell.form == LoihiForm::refractory;
  std::string text = fmt::format("neuron {}(x; u, v{}; du, dv, bias_mant, {}{}) {{", cell.name,
                                 resets ? ", phase" : (waits ? ", wait" : ""), cell.ternary ? "vth_hi, vth_lo" : "vth",
                                 resets ? ", interval, offset" : (waits ? ", period" : ""));
  if (resets)
    text += R"(
  step = where(phase + 1 >= interval, 0, phase + 1)
  again = step == remainder(offset, interval)
  u_before = where(again, 0, u)
  v_before = where(again, 0, v))";
  text += resets ? charged("u_before", "v_before") : charged("u", "v");
  text += waits ? "\n  h = where(wait > 0, v, charged)" : "\n  h = charged";
  const auto reset = [&](const char* spike) { return detach_reset ? fmt::format("detach({})", spike) : spike; };
  if (cell.ternary) {
    text += fired("up", "h - 64 * vth_hi", "vth_hi", surrogate) + fired("down", "64 * vth_lo - h", "vth_lo", surrogate);
    // A neuron that is above one threshold and below the other does not fire, and keeps v.
    text += fmt::format("\n  s = up - down\n  v' = select({0}, select({1}, h, 0), select({1}, 0, h))", reset("up"),
                        reset("down"));
  } else {
    text += fired("s", "h - 64 * vth", "vth", surrogate);
    text += fmt::format("\n  v' = select({}, 0, h)", reset("s"));
  }
  text += "\n  return s\n  u' = current";
  if (resets) text += "\n  phase' = step";
  if (waits) text += "\n  wait' = where(s != 0, period, maximum(wait - 1, 0))";
  return text + "\n}\n";
}

}  // namespace ops

std::string loihi_neuron(std::string_view name, std::string_view surrogate, const std::vector<double>& surrogate_args) {
  const std::string made = ops::surrogate_text("loihi_neuron", surrogate, surrogate_args);
  for (const bool ternary : {false, true})
    for (const LoihiForm form : {LoihiForm::plain, LoihiForm::reset, LoihiForm::refractory}) {
      const LoihiCell& cell = loihi_cell(ternary, form);
      if (cell.name.substr(6) == name) return ops::fixed_lif_text(cell, made, /*detach_reset=*/false);
    }
  if (name == "atrlif") return ops::atrlif_text(made);
  if (name == "rf") return ops::rf_text(made);
  if (name == "delta") return ops::delta_text();
  if (name == "sigma_delta") return ops::sigma_delta_text(/*rectified=*/true);
  if (name == "sigma_delta_unit") return ops::sigma_delta_text(/*rectified=*/false);
  TORCH_CHECK_VALUE(false,
                    "loihi_neuron: name must be lif, lif_reset, lif_refractory, one of these with ternary_ before it, "
                    "atrlif, rf, delta, sigma_delta or sigma_delta_unit, but is ",
                    name);
}

namespace ops {
namespace {

std::string neuron_text(std::string_view name, std::string_view surrogate, at::ArrayRef<double> args) {
  return loihi_neuron(name, surrogate, args.vec());
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("loihi_neuron", TORCH_FN(neuron_text)); }

}  // namespace
}  // namespace ops
}  // namespace spikeforge
