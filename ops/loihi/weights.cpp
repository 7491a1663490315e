#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/loihi.h>
#include <spikeforge/ops/loihi/connections.h>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <string>

namespace spikeforge {
namespace ops {
namespace {

using at::Tensor;
using SignMode = std::optional<std::string_view>;

constexpr const char* op = "loihi_prepare_weights";

void check(const Tensor& weight, std::int64_t num_weight_bits, const SignMode& sign_mode) {
  TORCH_CHECK_TYPE(at::isFloatingType(weight.scalar_type()) || at::isIntegralType(weight.scalar_type(), false), op,
                   ": weight must be of an integer or a floating-point type, but is ", weight.scalar_type());
  check_number(op, "num_weight_bits", num_weight_bits, 1, 8);
  TORCH_CHECK_VALUE(!sign_mode || *sign_mode == "mixed" || *sign_mode == "excitatory" || *sign_mode == "inhibitory", op,
                    ": sign_mode must be mixed, excitatory or inhibitory, or None to infer it, but is ", *sign_mode);
  if (at::isFloatingType(weight.scalar_type()) && weight.is_cpu() && !at::isTensorSubclassLike(weight))
    TORCH_CHECK_VALUE(!at::isnan(weight).any().item<bool>(), op, ": weight has a NaN");
}

// What is inferred stays a tensor, so that nothing waits for a GPU.
Tensor prepare_weights(const Tensor& weight, std::int64_t num_weight_bits, SignMode sign_mode) {
  check(weight, num_weight_bits, sign_mode);
  // The bounds are beyond all ranges below, and within int32. A conversion truncates toward zero.
  const Tensor w = weight.detach().clamp(-512, 512).to(at::kInt);
  const auto known = [&](bool is) { return at::scalar_tensor(is, w.options().dtype(at::kBool)); };
  const Tensor excitatory = sign_mode ? known(*sign_mode == "excitatory") : w.ge(0).all();
  const Tensor inhibitory =
      sign_mode ? known(*sign_mode == "inhibitory") : w.le(0).all().logical_and(excitatory.logical_not());
  const Tensor mixed = excitatory.logical_or(inhibitory).logical_not();

  const auto number = [&](std::int64_t value) { return at::scalar_tensor(value, w.options()); };
  const Tensor least = at::where(excitatory, number(0), at::where(inhibitory, number(-255), number(-256)));
  const Tensor most = at::where(inhibitory, number(0), number(255));
  const Tensor bits = mixed.to(at::kInt).add(8 - num_weight_bits);
  const Tensor sign = at::where(inhibitory, number(-1), number(1));
  const Tensor magnitude = w.maximum(least).minimum(most).mul(sign);
  return magnitude.bitwise_right_shift(bits).bitwise_left_shift(bits).mul(sign);
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("loihi_prepare_weights", TORCH_FN(prepare_weights));
}

}  // namespace
}  // namespace ops

at::Tensor loihi_prepare_weights(const at::Tensor& weight, std::int64_t num_weight_bits,
                                 std::optional<std::string_view> sign_mode) {
  using Signature = at::Tensor(const at::Tensor&, std::int64_t, std::optional<std::string_view>);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("spikeforge::loihi_prepare_weights", "").typed<Signature>();
  return op.call(weight, num_weight_bits, sign_mode);
}

}  // namespace spikeforge
