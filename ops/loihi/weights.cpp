#include "ops/common/library.h"
#include "ops/loihi.h"
#include "ops/loihi/connections.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <string_view>
#include <tuple>

namespace spikeforge {
namespace ops {
namespace {

using at::Tensor;
using SignMode = std::optional<std::string_view>;

void check_weights(const char* op, const Tensor& weight, std::int64_t num_weight_bits, const SignMode& sign_mode) {
  TORCH_CHECK_TYPE(at::isFloatingType(weight.scalar_type()) || at::isIntegralType(weight.scalar_type(), false), op,
                   ": weight must be of an integer or a floating-point type, but is ", weight.scalar_type());
  check_number(op, "num_weight_bits", num_weight_bits, 1, 8);
  TORCH_CHECK_VALUE(!sign_mode || *sign_mode == "mixed" || *sign_mode == "excitatory" || *sign_mode == "inhibitory", op,
                    ": sign_mode must be mixed, excitatory or inhibitory, or None to infer it, but is ", *sign_mode);
  if (at::isFloatingType(weight.scalar_type()) && weight.is_cpu() && !at::isTensorSubclassLike(weight))
    TORCH_CHECK_VALUE(!at::isnan(weight.detach()).any().item<bool>(), op, ": weight contains NaN");
}

// The legal integers of weights. Inferred values are tensors, to avoid synchronisation with a GPU.
struct WeightFormat {
  Tensor least, most;  // the bounds before the lowest bits are cleared
  Tensor bits;         // the number of cleared bits
  Tensor sign;         // -1 if bits are cleared toward zero from below

  // The mode is inferred from the signs of the weights before the conversion to integers: a layer whose weights are all
  // below 1 in magnitude has only zeros after it, and its weights could never change sign.
  WeightFormat(const Tensor& w, std::int64_t num_weight_bits, const SignMode& sign_mode) {
    const auto known = [&](bool is) { return at::scalar_tensor(is, w.options().dtype(at::kBool)); };
    const auto number = [&](std::int64_t value) { return at::scalar_tensor(value, w.options().dtype(at::kInt)); };
    const Tensor excitatory = sign_mode ? known(*sign_mode == "excitatory") : w.ge(0).all();
    const Tensor inhibitory =
        sign_mode ? known(*sign_mode == "inhibitory") : w.le(0).all().logical_and(excitatory.logical_not());
    const Tensor mixed = excitatory.logical_or(inhibitory).logical_not();
    least = at::where(excitatory, number(0), at::where(inhibitory, number(-255), number(-256)));
    most = at::where(inhibitory, number(0), number(255));
    bits = mixed.to(at::kInt).add(8 - num_weight_bits);
    sign = at::where(inhibitory, number(-1), number(1));
  }

  Tensor cleared(const Tensor& w) const {
    const Tensor magnitude = w.maximum(least).minimum(most).mul(sign);
    return magnitude.bitwise_right_shift(bits).bitwise_left_shift(bits).mul(sign);
  }
};

// Truncates toward zero. The bounds of the clamp are outside all ranges, and within int32.
Tensor as_integers(const Tensor& weight) { return weight.clamp(-512, 512).to(at::kInt); }

Tensor prepare_weights(const Tensor& weight, std::int64_t num_weight_bits, SignMode sign_mode) {
  check_weights("loihi_prepare_weights", weight, num_weight_bits, sign_mode);
  const Tensor values = weight.detach();
  return WeightFormat(values, num_weight_bits, sign_mode).cleared(as_integers(values));
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("loihi_prepare_weights", TORCH_FN(prepare_weights));
}

// Rounds to the nearest integer of the format, or as prepare_weights. Clipped weights have no gradient.
Tensor fake_quantize(const Tensor& weight, std::int64_t num_weight_bits, SignMode sign_mode, bool truncate) {
  constexpr const char* op = "loihi_fake_quantize";
  TORCH_CHECK_TYPE(at::isFloatingType(weight.scalar_type()), op, ": weight must be floating point, but is ",
                   weight.scalar_type());
  check_weights(op, weight, num_weight_bits, sign_mode);
  const Tensor values = weight.detach();
  const WeightFormat format(values, num_weight_bits, sign_mode);
  Tensor integers = as_integers(values);
  if (!truncate) {
    const Tensor step = at::bitwise_left_shift(at::scalar_tensor(1, format.bits.options()), format.bits);
    integers = as_integers(values.clamp(-512, 512).div(step).round().mul(step));
  }
  const Tensor is_inside = values.ge(format.least).logical_and(values.le(format.most));
  const Tensor source = at::where(is_inside, weight.sub(values), at::scalar_tensor(0, weight.options()));
  return format.cleared(integers).to(weight.scalar_type()).add(source);
}

void register_fake_quantize(torch::Library& library) { library.impl("loihi_fake_quantize", TORCH_FN(fake_quantize)); }

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { register_fake_quantize(library); }
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { register_fake_quantize(library); }

}  // namespace
}  // namespace ops

at::Tensor loihi_prepare_weights(const at::Tensor& weight, std::int64_t num_weight_bits,
                                 std::optional<std::string_view> sign_mode) {
  static const auto op = ops::find_operator<decltype(loihi_prepare_weights)>("spikeforge::loihi_prepare_weights");
  return op.call(weight, num_weight_bits, sign_mode);
}

at::Tensor loihi_fake_quantize(const at::Tensor& weight, std::int64_t num_weight_bits,
                               std::optional<std::string_view> sign_mode, bool truncate) {
  static const auto op = ops::find_operator<decltype(loihi_fake_quantize)>("spikeforge::loihi_fake_quantize");
  return op.call(weight, num_weight_bits, sign_mode, truncate);
}

OptimizedWeights loihi_optimize_weight_bits(const at::Tensor& weight, std::optional<std::string_view> sign_mode) {
  constexpr const char* op = "loihi_optimize_weight_bits";
  ops::check_weights(op, weight, 8, sign_mode);
  const at::Tensor given = weight.detach().to(at::kCPU);
  TORCH_CHECK_VALUE(given.numel() > 0, op, ": weight must have an element at least");
  ops::check_whole(op, "weight", given);
  const at::Tensor w = ops::as_integers(given);
  const auto lowest = w.min().item<std::int64_t>(), highest = w.max().item<std::int64_t>();
  if (!sign_mode) {
    sign_mode = "mixed";
    if (highest <= 0) sign_mode = "inhibitory";
    if (lowest >= 0) sign_mode = "excitatory";
  }
  const ops::WeightFormat format(w, /*num_weight_bits=*/8, sign_mode);
  const auto least = format.least.item<std::int64_t>(), most = format.most.item<std::int64_t>();
  ops::check_elements(op, "weight", given, least, most);

  OptimizedWeights result{.weights = w};
  if (lowest == 0 && highest == 0) {
    result.num_weight_bits = 1;
    return result;
  }
  const auto fits = [&](std::int64_t exponent) {
    const std::int64_t factor = std::int64_t{1} << -exponent;
    return lowest * factor >= least && highest * factor <= most;
  };
  while (result.weight_exp > ops::least_weight_exp && fits(result.weight_exp - 1)) --result.weight_exp;
  result.weights = w.bitwise_left_shift(-result.weight_exp);
  const auto keeps = [&](std::int64_t bits) {
    return result.weights.equal(loihi_prepare_weights(result.weights, bits, sign_mode));
  };
  while (result.num_weight_bits > 1 && keeps(result.num_weight_bits - 1)) --result.num_weight_bits;
  return result;
}

namespace ops {
namespace {

std::tuple<Tensor, std::int64_t, std::int64_t> optimize_weight_bits(const Tensor& weight, SignMode sign_mode) {
  const OptimizedWeights optimized = loihi_optimize_weight_bits(weight, sign_mode);
  return {optimized.weights, optimized.num_weight_bits, optimized.weight_exp};
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("loihi_optimize_weight_bits", TORCH_FN(optimize_weight_bits));
}

}  // namespace
}  // namespace ops
}  // namespace spikeforge
