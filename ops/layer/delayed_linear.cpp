// delayed_linear: y[t] = Σ_i w[o, i] x[t - d[o, i], i] + b[o], with learned delays d, which need not be integers:
//   y[t] = Σ_k x[t - k] (w ∘ κ_k(d))^T + b,   k = 0 .. max_delay,
// where κ spreads a delay over whole steps. On CPU and GPU products consist of shifted sequences (delayed_rows.cpp);
// elsewhere there is a product for each k, whose matrix is not stored. With one delay for each input, x is spread once,
// and there is one product.
//
// Khalfaoui-Hassani, Pellegrini and Masquelier 2023, "Dilated convolution with learnable spacings" (ICLR), and
// Hammouamri, Khalfaoui-Hassani and Masquelier 2024, "Learning delays in spiking neural networks using dilated
// convolutions with learnable spacings" (ICLR): the three forms of κ.
#include "ops/layer/delayed_linear.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/common/record.h"
#include "ops/common/vmap_level.h"
#include "ops/layer.h"
#include "ops/layer/lowering.h"
#include "ops/multistep/text_call.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace spikeforge::ops::layers::delayed {
namespace {

using autograd::AutogradContext;
using autograd::variable_list;

constexpr const char* op = "delayed_linear";
constexpr const char* backward_op = "delayed_linear_backward";

SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "delayed_linear(Tensor x, Tensor weight, Tensor delay, Tensor? bias=None, *, int max_delay, str "
      "interpolation=\"linear\", float width=0.5, Tensor? past=None) -> Tensor");
  library.def(
      "delayed_linear_forward(Tensor x, Tensor weight, Tensor delay, int max_delay, str interpolation, float width, "
      "Tensor? past) -> Tensor");
  library.def(
      "delayed_linear_backward(Tensor grad, Tensor x, Tensor weight, Tensor delay, int max_delay, str interpolation, "
      "float width, Tensor? past, bool[] needs_grad) -> Tensor[]");
}

}  // namespace

// ---- the spreading of delays ----

Interpolation interpolation_of(std::string_view name) {
  constexpr std::array names = {"linear", "triangle", "gauss"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<Interpolation>(i);
  TORCH_CHECK_VALUE(false, op, ": interpolation must be \"linear\", \"triangle\" or \"gauss\", but is \"", name, "\"");
}

constexpr double narrowest = 1e-9;  // of a Gaussian: the square of its inverse fits in float32

Spread::Spread(const at::Tensor& delay, std::int64_t most, Interpolation form, double width)
    : form_(form),
      width_(form == Interpolation::gauss ? std::max(width, narrowest) : width),
      most_(most),
      inside_(delay.ge(0).logical_and_(delay.le(most))) {
  delay_ = at::clamp(delay, 0, most);
  double reach = 0;  // distance to the first step
  if (form == Interpolation::linear) {
    steps_ = 2;
  } else if (form == Interpolation::triangle) {
    reach = 1 + width;
    steps_ = static_cast<std::int64_t>(std::min(std::ceil(2 * reach), double{longest})) + 1;
  } else {
    const double deviations = delay.scalar_type() == at::kDouble ? 9.2 : 6.5;  // 4e-19 and 7e-10 of the nearest step's
    reach = std::sqrt(deviations * deviations * width * width + .25);
    steps_ = static_cast<std::int64_t>(std::min(2 * reach, double{longest})) + 2;
  }
  steps_ = std::min(steps_, most + 1);
  const auto last_first = static_cast<double>(most + 1 - steps_);
  first_ = (form == Interpolation::linear ? at::floor(delay_) : at::ceil(delay_ - reach)).nan_to_num_(0);
  first_.clamp_(0, last_first);
  if (form == Interpolation::linear) return;
  sum_ = at::zeros_like(delay_);
  slope_of_sum_ = at::zeros_like(delay_);
  for (std::int64_t n = 0; n < steps_; ++n) {
    const auto [value, slope] = unscaled(first_ + n);
    sum_.add_(value);
    slope_of_sum_.add_(slope);
  }
}

Spread Spread::expanded(c10::IntArrayRef sizes) const {
  Spread whole = *this;
  for (at::Tensor* t : {&whole.inside_, &whole.delay_, &whole.first_, &whole.sum_, &whole.slope_of_sum_})
    if (t->defined()) *t = t->expand(sizes);
  return whole;
}

template <class K> at::Tensor Spread::value_at(const K& k) const {
  if (form_ != Interpolation::linear) return unscaled(k).first.div_(sum_);
  const at::Tensor fraction = delay_ - first_;
  return first_.eq(k) * (1 - fraction) + first_.eq(k - 1) * fraction;
}

template <class K> at::Tensor Spread::slope_at(const K& k) const {
  at::Tensor slope;
  if (form_ == Interpolation::linear) {
    if (most_ == 0) return at::zeros_like(delay_);
    slope = (first_.eq(k - 1).to(delay_.scalar_type()) - first_.eq(k).to(delay_.scalar_type()));
  } else {
    const auto [value, derivative] = unscaled(k);
    slope = (derivative - value * slope_of_sum_ / sum_) / sum_;
  }
  return slope * inside_;
}

// For the linear form, no comparison is needed: step 0 has 1 - f, and step 1 has f.
at::Tensor Spread::own_value(std::int64_t n) const {
  if (form_ != Interpolation::linear) return value_at(first_ + static_cast<double>(n));
  at::Tensor fraction = delay_ - first_;
  return n == 0 ? 1 - fraction : fraction;
}

at::Tensor Spread::own_slope(std::int64_t n) const {
  if (form_ != Interpolation::linear) return slope_at(first_ + static_cast<double>(n));
  if (most_ == 0) return at::zeros_like(delay_);
  const at::Tensor inside = inside_.to(delay_.scalar_type());
  return n == 0 ? -inside : inside;
}

template <class K> std::pair<at::Tensor, at::Tensor> Spread::unscaled(const K& k) const {
  const at::Tensor away = k - delay_;
  if (form_ == Interpolation::gauss) {
    // The value is scaled by a factor for each delay, which cancels in the sum, so that a narrow Gaussian does not
    // vanish between two steps.
    const at::Tensor nearest = delay_ - at::round(delay_);
    at::Tensor value = at::exp((away.square() - nearest.square()).mul_(-.5 / (width_ * width_)));
    at::Tensor slope = value * away / (width_ * width_);
    return {std::move(value), std::move(slope)};
  }
  at::Tensor value = (1 + width_ - at::abs(away)).clamp_min_(0);
  at::Tensor slope = at::sign(away) * value.gt(0);
  return {std::move(value), std::move(slope)};
}

// ----

namespace {

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay, std::int64_t max_delay, double width,
           const MaybeTensor& past) {
  const Leader leader{op, "x", x};
  check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": x must have shape [T, *batch, I], but has ", x.sym_sizes());
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.sym_size(1) == x.sym_size(-1), op, ": weight must have shape [O, ",
                    x.sym_size(-1), "], for x of shape ", x.sym_sizes(), ", but has ", weight.sym_sizes());
  check_same_type(leader, "weight", weight);
  TORCH_CHECK_VALUE(
      delay.sym_sizes() == weight.sym_sizes() || (delay.dim() == 1 && delay.sym_size(0) == weight.sym_size(1)), op,
      ": delay must have the shape of weight, ", weight.sym_sizes(), ", or one for each input, [", weight.sym_size(1),
      "], but has ", delay.sym_sizes());
  TORCH_CHECK_TYPE(at::isFloatingType(delay.scalar_type()), op, ": delay must be of a floating type, but is ",
                   delay.scalar_type());
  check_device(leader, "weight", weight);
  check_device(leader, "delay", delay);
  TORCH_CHECK_VALUE(max_delay >= 0 && max_delay <= longest, op, ": max_delay must be from 0 to ", longest, ", but is ",
                    max_delay);
  TORCH_CHECK_VALUE(std::isfinite(width) && width > 0, op, ": width must be above 0, but is ", width);
  if (!past) return;
  c10::SymDimVector shape(x.sym_sizes());
  shape[0] = max_delay;
  TORCH_CHECK_VALUE(past->sym_sizes() == c10::SymIntArrayRef(shape) && past->device() == x.device(), op,
                    ": past must have shape ", shape, " on ", x.device(),
                    ", the inputs of the max_delay steps before, but has ", past->sym_sizes(), " on ", past->device());
  check_same_type(leader, "past", *past);
}

// Returns the previous steps and x, [max_delay + T, *batch, I].
at::Tensor with_past(const at::Tensor& x, std::int64_t max_delay, const MaybeTensor& past) {
  if (max_delay == 0) return x.contiguous();
  c10::SymDimVector shape(x.sym_sizes());
  shape[0] = max_delay;
  return at::cat({past ? *past : at::zeros_symint(shape, x.options()), x});
}

// Returns the values k steps before each step.
at::Tensor before(const at::Tensor& all, std::int64_t k, std::int64_t max_delay) {
  return all.narrow_symint(0, max_delay - k, all.sym_size(0) - max_delay);
}
at::Tensor rows(const at::Tensor& t) { return t.flatten(0, -2); }

// Returns the type of sums over k.
c10::ScalarType wide(const at::Tensor& x) { return state_type(x.scalar_type()); }

at::Tensor spread_inputs(const at::Tensor& all, const Spread& spread, std::int64_t max_delay) {
  at::Tensor sum;
  for (std::int64_t k = 0; k <= max_delay; ++k) {
    const at::Tensor then = before(all, k, max_delay).to(wide(all));
    sum = k == 0 ? then * spread.value(k) : sum.addcmul_(then, spread.value(k));
  }
  return sum.to(all.scalar_type());
}

Call checked(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay, std::int64_t max_delay,
             std::string_view interpolation, double width, const MaybeTensor& past) {
  const Interpolation form = interpolation_of(interpolation);
  check(x, weight, delay, max_delay, width, past);
  return {x, weight, delay, max_delay, past, Spread(delay.to(wide(x)), max_delay, form, width)};
}

c10::SymDimVector shape_of_result(const Call& call) {
  c10::SymDimVector shape(call.x.sym_sizes());
  shape.back() = call.weight.sym_size(0);
  return shape;
}

at::Tensor forward_by_torch(const Call& call) {
  const auto& [x, weight, delay, max_delay, past, spread] = call;
  const at::Tensor all = with_past(x, max_delay, past);
  if (call.of_inputs()) return at::mm(rows(spread_inputs(all, spread, max_delay)), weight.t());
  at::Tensor sum;
  for (std::int64_t k = 0; k <= max_delay; ++k) {
    const at::Tensor matrix = (weight * spread.value(k)).to(x.scalar_type());
    const at::Tensor part = at::mm(rows(before(all, k, max_delay)), matrix.t()).to(wide(x));
    sum = k == 0 ? part : sum.add_(part);
  }
  return sum;
}

Gradients backward_by_torch(const Call& call, const at::Tensor& grad, const Wanted& wanted) {
  const auto& [x, weight, delay, max_delay, past, spread] = call;
  const bool of_x = wanted.x || wanted.past, of_matrix = wanted.weight || wanted.delay;
  const at::Tensor all = with_past(x, max_delay, past), g = rows(grad);
  at::Tensor grad_all = at::zeros_symint(all.sym_sizes(), all.options().dtype(wide(x)));
  at::Tensor grad_delay = at::zeros_symint(delay.sym_sizes(), delay.options().dtype(wide(x)));
  at::Tensor grad_weight = at::zeros_symint(weight.sym_sizes(), weight.options().dtype(wide(x)));
  if (call.of_inputs()) {
    if (of_matrix) grad_weight = at::mm(g.t(), rows(spread_inputs(all, spread, max_delay)));
    const at::Tensor of_spread = at::mm(g, weight).to(wide(x)).reshape_symint(x.sym_sizes());
    for (std::int64_t k = 0; k <= max_delay; ++k) {
      if (of_x) before(grad_all, k, max_delay).addcmul_(of_spread, spread.value(k));
      if (of_matrix) grad_delay.addcmul_(rows(of_spread * before(all, k, max_delay)).sum(0), spread.slope(k));
    }
  } else {
    const at::Tensor w = weight.to(wide(x));
    for (std::int64_t k = 0; k <= max_delay; ++k) {
      const at::Tensor value = spread.value(k), then = before(all, k, max_delay);
      if (of_x) {
        const at::Tensor matrix = (w * value).to(x.scalar_type());
        before(grad_all, k, max_delay).add_(at::mm(g, matrix).reshape_symint(then.sym_sizes()));
      }
      if (of_matrix) {
        const at::Tensor product = at::mm(g.t(), rows(then)).to(wide(x));
        grad_weight.addcmul_(value, product);
        grad_delay.addcmul_(w * spread.slope(k), product);
      }
    }
  }
  return {grad_all.narrow_symint(0, max_delay, x.sym_size(0)), grad_weight, grad_delay,
          grad_all.narrow_symint(0, 0, max_delay)};
}

using ForwardOf = at::Tensor (*)(const Call&);
using BackwardOf = Gradients (*)(const Call&, const at::Tensor&, const Wanted&);

template <ForwardOf forward_of>
at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay, std::int64_t max_delay,
                   std::string_view interpolation, double width, const MaybeTensor& past) {
  const Call call = checked(x, weight, delay, max_delay, interpolation, width, past);
  return forward_of(call).to(x.scalar_type()).reshape_symint(shape_of_result(call));
}

// Returns the needed gradients of x, weight, delay and past, in this order.
template <BackwardOf backward_of>
std::vector<at::Tensor> backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
    std::int64_t max_delay, std::string_view interpolation, double width, const MaybeTensor& past,
    c10::List<bool> needs_grad) {  // NOLINT(performance-unnecessary-value-param): for the dispatcher
  const Call call = checked(x, weight, delay, max_delay, interpolation, width, past);
  const c10::SymDimVector shape = shape_of_result(call);
  TORCH_CHECK_VALUE(grad.sym_sizes() == c10::SymIntArrayRef(shape) && grad.device() == x.device(), backward_op,
                    ": grad must have shape ", shape, " on ", x.device(), ", but has ", grad.sym_sizes(), " on ",
                    grad.device());
  check_same_type({backward_op, "x", x}, "grad", grad);
  TORCH_CHECK_VALUE(
      needs_grad.size() == 4 && (past || !needs_grad.get(3)), backward_op,
      ": needs_grad must have 4 entries, of x, weight, delay and past, and the last be false without past");
  const Gradients gradients =
      backward_of(call, grad, {needs_grad.get(0), needs_grad.get(1), needs_grad.get(2), needs_grad.get(3)});
  std::vector<at::Tensor> list;
  const auto add = [&](std::size_t i, const at::Tensor& gradient, const at::Tensor& like) {
    if (needs_grad.get(i)) list.push_back(gradient.to(like.scalar_type()).contiguous());
  };
  add(0, gradients.x, x);
  add(1, gradients.weight, weight);
  add(2, gradients.delay, delay);
  add(3, gradients.past, x);
  return list;
}

at::Tensor call_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay, std::int64_t max_delay,
                        std::string_view interpolation, double width, const MaybeTensor& past) {
  static const auto handle = find_operator<decltype(forward<forward_by_torch>)>("spikeforge::delayed_linear_forward");
  return handle.call(x, weight, delay, max_delay, interpolation, width, past);
}

std::vector<at::Tensor> call_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                      const at::Tensor& delay, std::int64_t max_delay, std::string_view interpolation,
                                      double width, const MaybeTensor& past, const c10::List<bool>& needs_grad) {
  static const auto handle =
      find_operator<decltype(backward<backward_by_torch>)>("spikeforge::delayed_linear_backward");
  return handle.call(grad, x, weight, delay, max_delay, interpolation, width, past, needs_grad);
}

// torch.vmap: if weight and delay are the same for all maps and have no gradient, maps are an additional batch
// dimension; otherwise they are computed one by one.
at::Tensor forward_batched(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                           std::int64_t max_delay, std::string_view interpolation, double width,
                           const MaybeTensor& past) {
  const VmapLevel maps(x, weight, delay, past);
  if (!maps.maps(weight) && !maps.maps(delay))
    return maps.mapped(call_forward(maps.second(x), weight, delay, max_delay, interpolation, width, maps.second(past)),
                       1);
  return maps.each([&](std::int64_t i) {
    return call_forward(maps.one(x, i), maps.one(weight, i), maps.one(delay, i), max_delay, interpolation, width,
                        maps.one(past, i));
  });
}

std::vector<at::Tensor> backward_batched(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                         const at::Tensor& delay, std::int64_t max_delay,
                                         std::string_view interpolation, double width, const MaybeTensor& past,
                                         c10::List<bool> needs_grad) {  // NOLINT(performance-unnecessary-value-param)
  const VmapLevel maps(grad, x, weight, delay, past);
  const bool is_of_matrix = needs_grad.get(1) || needs_grad.get(2);
  if (is_of_matrix || maps.maps(weight) || maps.maps(delay))
    return maps.each([&](std::int64_t i) {
      return call_backward(maps.one(grad, i), maps.one(x, i), maps.one(weight, i), maps.one(delay, i), max_delay,
                           interpolation, width, maps.one(past, i), needs_grad);
    });
  std::vector<at::Tensor> list = call_backward(maps.second(grad), maps.second(x), weight, delay, max_delay,
                                               interpolation, width, maps.second(past), needs_grad);
  for (at::Tensor& t : list) t = maps.mapped(t, 1);
  return list;
}

struct Rule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool has_past = saved.size() > 3;
    c10::List<bool> needs_grad;
    for (std::size_t i = 0; i < 4; ++i) needs_grad.push_back(i < saved.size() && ctx->needs_input_grad(i));
    std::vector<at::Tensor> gradients =
        call_backward(grads[0], saved[0], saved[1], saved[2], ctx->saved_data.at("max_delay").toInt(),
                      ctx->saved_data.at("interpolation").toStringView(), ctx->saved_data.at("width").toDouble(),
                      has_past ? MaybeTensor(saved[3]) : std::nullopt, needs_grad);
    variable_list list(saved.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (needs_grad.get(i)) list[i] = std::move(gradients[next++]);
    return list;
  }
};

at::Tensor forward_autograd(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                            std::int64_t max_delay, std::string_view interpolation, double width,
                            const MaybeTensor& past) {
  variable_list inputs{x, weight, delay};
  if (past) inputs.push_back(*past);
  return autograd::differentiable<Rule>(
      op, inputs, [&] { return call_forward(x, weight, delay, max_delay, interpolation, width, past); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward(inputs);
        ctx->saved_data["max_delay"] = max_delay;
        ctx->saved_data["interpolation"] = std::string(interpolation);
        ctx->saved_data["width"] = width;
      });
}

at::Tensor forward_autocast(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                            std::int64_t max_delay, std::string_view interpolation, double width,
                            const MaybeTensor& past) {
  const Lowering lower(x);
  return call_forward(lower(x), lower(weight), delay, max_delay, interpolation, width, lower(past));
}

at::Tensor delayed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                          const MaybeTensor& bias, std::int64_t max_delay, std::string_view interpolation, double width,
                          const MaybeTensor& past) {
  TORCH_CHECK_VALUE(!bias || (bias->dim() == 1 && weight.dim() == 2 && bias->sym_size(0) == weight.sym_size(0)), op,
                    ": bias must have shape [O], one number for each row of weight, ", weight.sym_sizes(), ", but has ",
                    bias ? bias->sym_sizes() : c10::SymIntArrayRef());
  TORCH_CHECK_TYPE(!bias || at::isFloatingType(bias->scalar_type()), op, ": bias must be of a floating type, but is ",
                   bias ? bias->scalar_type() : at::kFloat);
  const at::Tensor y = call_forward(x, weight, delay, max_delay, interpolation, width, past);
  return bias ? y + bias->to(y.scalar_type()) : y;
}

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) { library.impl(op, TORCH_FN(delayed_linear)); }
SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl(op, TORCH_FN(delayed_linear));
  library.impl("delayed_linear_forward", TORCH_FN(forward_batched));
  library.impl(backward_op, TORCH_FN(backward_batched));
}
SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("delayed_linear_forward", TORCH_FN(forward<forward_by_torch>));
  library.impl(backward_op, TORCH_FN(backward<backward_by_torch>));
}
SPIKEFORGE_KERNELS(CPU, library) {
  library.impl("delayed_linear_forward", TORCH_FN(forward<forward_cpu>));
  library.impl(backward_op, TORCH_FN(backward<backward_cpu>));
}
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) {
  library.impl("delayed_linear_forward", TORCH_FN(forward<forward_cuda>));
  library.impl(backward_op, TORCH_FN(backward<backward_cuda>));
}
#endif
SPIKEFORGE_KERNELS(AutocastCPU, library) { library.impl("delayed_linear_forward", TORCH_FN(forward_autocast)); }
SPIKEFORGE_KERNELS(AutocastCUDA, library) { library.impl("delayed_linear_forward", TORCH_FN(forward_autocast)); }
SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("delayed_linear_forward", TORCH_FN(forward_autograd));
  library.impl(backward_op, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::layers::delayed

namespace spikeforge {

at::Tensor delayed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                          std::int64_t max_delay, const DelayedLinearOptions& options) {
  return ops::layers::delayed::delayed_linear(x, weight, delay, options.bias, max_delay, options.interpolation,
                                              options.width, options.past);
}

}  // namespace spikeforge
