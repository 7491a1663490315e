// A layer of a float network in Loihi's fixed point. Times `scale` = k, currents become integers and v in units of 64:
//   weight 2^weight_exp = k gain W input_scale    vth = k v_threshold    bias_mant 2^bias_exp = 64 k gain b
// with gain = 1 / tau under decay_input, else 1; dv = 4096 / tau; du = 4095, so that u is the current of the step
// alone.
#include "ops/common/library.h"
#include "ops/loihi.h"
#include "ops/loihi/connections.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace spikeforge {
namespace {

using at::Tensor;

constexpr const char* op = "loihi_quantize";
constexpr double most_vth = 131071;     // 17 bits
constexpr double most_current = 32767;  // a_in: 16 bits with a sign
constexpr double most_mant = 4095;      // 13 bits with a sign
constexpr std::int64_t most_bias_exp = 7;

void check(const FloatLayer& layer) {
  const auto check_tensor = [](const char* name, const Tensor& t) {
    TORCH_CHECK_TYPE(at::isFloatingType(t.scalar_type()), op, ": ", name, " must be floating point, but is ",
                     t.scalar_type());
    TORCH_CHECK_VALUE(t.isfinite().all().item<bool>(), op, ": ", name, " must be finite");
  };
  TORCH_CHECK_VALUE(layer.weight.dim() == 2, op, ": weight must have shape [out, in], but has ", layer.weight.sizes());
  check_tensor("weight", layer.weight);
  if (layer.bias) {
    TORCH_CHECK_VALUE(layer.bias->dim() == 1 && layer.bias->size(0) == layer.weight.size(0), op,
                      ": bias must have shape [", layer.weight.size(0), "], but has ", layer.bias->sizes());
    check_tensor("bias", *layer.bias);
  }
  const auto check_positive = [](const char* name, double value, bool legal) {
    TORCH_CHECK_VALUE(std::isfinite(value) && legal, op, ": ", name, " must be finite and ",
                      std::string_view(name) == "tau" ? ">= 1" : "> 0", ", but is ", value);
  };
  check_positive("tau", layer.tau, layer.tau >= 1);
  check_positive("v_threshold", layer.v_threshold, layer.v_threshold > 0);
  check_positive("input_scale", layer.input_scale, layer.input_scale > 0);
  check_positive("largest_message", static_cast<double>(layer.largest_message), layer.largest_message > 0);
}

double largest(const Tensor& t) { return t.numel() == 0 ? 0.0 : t.abs().max().item<double>(); }

// The legal integer weights of a layer: multiples of a step.
struct WeightRange {
  std::int64_t least, most, step;

  WeightRange(const Tensor& weight, std::int64_t num_weight_bits) {
    const bool positive = weight.ge(0).all().item<bool>(), negative = weight.le(0).all().item<bool>();
    const bool mixed = !positive && !negative;
    step = std::int64_t{1} << (8 - num_weight_bits + (mixed ? 1 : 0));
    most = positive || mixed ? 256 - step : 0;
    least = positive ? 0 : mixed ? -256 : -(256 - step);
  }
  std::int64_t magnitude() const { return 256 - step; }
};

}  // namespace

FixedLayer loihi_quantize(const FloatLayer& layer, std::int64_t num_weight_bits) {
  check(layer);
  // num_weight_bits is at least 2, because mixed weights of one bit are only 0 and -256.
  ops::check_number(op, "num_weight_bits", num_weight_bits, 2, 8);
  const double gain = layer.decay_input ? 1 / layer.tau : 1.0;
  const Tensor weight = layer.weight.detach().to(at::kCPU, at::kDouble).mul(gain * layer.input_scale);
  const Tensor bias = layer.bias ? layer.bias->detach().to(at::kCPU, at::kDouble).mul(gain)
                                 : at::zeros({weight.size(0)}, at::TensorOptions(at::kDouble));
  const WeightRange range(weight, num_weight_bits);
  const double largest_weight = largest(weight), largest_bias = largest(bias);
  const double unit = static_cast<double>(range.magnitude()) / (largest_weight > 0 ? largest_weight : 1.0);
  const Tensor integers = weight.mul(unit / static_cast<double>(range.step)).round().mul(range.step);
  FixedLayer fixed;
  fixed.weight = integers.clamp(range.least, range.most).to(at::kInt);

  // The largest possible sum of messages, and the other fields, at exponent 0.
  const double largest_sum = fixed.weight.numel() == 0 ? 0.0
                                                       : fixed.weight.abs().sum(1).max().item<double>() *
                                                             static_cast<double>(layer.largest_message);
  const auto fits = [&](std::int64_t exponent) {
    const double factor = std::exp2(static_cast<double>(exponent));
    return unit * factor * layer.v_threshold <= most_vth && largest_sum * factor <= most_current &&
           64 * unit * factor * largest_bias <= most_mant * std::exp2(static_cast<double>(most_bias_exp));
  };
  fixed.weight_exp = ops::most_weight_exp;
  while (fixed.weight_exp >= ops::least_weight_exp && !fits(fixed.weight_exp)) --fixed.weight_exp;
  TORCH_CHECK_VALUE(fixed.weight_exp >= ops::least_weight_exp, op,
                    ": no weight_exp in [-8, 7] fits the layer: relative to its largest weight, ", largest_weight,
                    ", v_threshold (", layer.v_threshold, "), the largest bias (", largest_bias,
                    ") or the sum of a row of weights is too large");
  const double exponent_factor = std::exp2(static_cast<double>(fixed.weight_exp));
  fixed.scale = unit * exponent_factor;

  fixed.vth = std::llround(fixed.scale * layer.v_threshold);
  fixed.dv = std::min<std::int64_t>(std::llround(4096 / layer.tau), 4095);
  const double bias_scale = 64 * fixed.scale;
  while (std::round(bias_scale * largest_bias / std::exp2(static_cast<double>(fixed.bias_exp))) > most_mant)
    ++fixed.bias_exp;
  const double bias_unit = std::exp2(static_cast<double>(fixed.bias_exp)) / bias_scale;
  fixed.bias_mant = bias.div(bias_unit).round().to(at::kInt);

  if (largest_weight > 0)
    fixed.weight_error = largest(fixed.weight.to(at::kDouble).div(unit).sub(weight)) / largest_weight;
  fixed.bias_error = largest(fixed.bias_mant.to(at::kDouble).mul(bias_unit).sub(bias)) / layer.v_threshold;
  fixed.threshold_error =
      std::abs(static_cast<double>(fixed.vth) / fixed.scale - layer.v_threshold) / layer.v_threshold;
  fixed.decay_error = std::abs(static_cast<double>(fixed.dv) / 4096 - 1 / layer.tau);
  return fixed;
}

namespace {

using Result = std::tuple<Tensor, Tensor, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double, double,
                          double, double, double>;

Result quantize(const Tensor& weight, const std::optional<Tensor>& bias, double tau, bool decay_input,
                double v_threshold, double input_scale, std::int64_t largest_message, std::int64_t num_weight_bits) {
  const FixedLayer fixed = loihi_quantize({.weight = weight,
                                           .bias = bias,
                                           .tau = tau,
                                           .decay_input = decay_input,
                                           .v_threshold = v_threshold,
                                           .input_scale = input_scale,
                                           .largest_message = largest_message},
                                          num_weight_bits);
  return {fixed.weight, fixed.bias_mant,    fixed.bias_exp,   fixed.weight_exp,      fixed.dv,         fixed.vth,
          fixed.scale,  fixed.weight_error, fixed.bias_error, fixed.threshold_error, fixed.decay_error};
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("loihi_quantize", TORCH_FN(quantize)); }

}  // namespace
}  // namespace spikeforge
