// The derivatives of pooling. A mean is linear, and a maximum is linear for fixed positions: the forward and the
// backward pass are each other's derivative, to any order.
#include "ops/common/library.h"
#include "ops/common/record.h"
#include "ops/layer/pooling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>

#include <optional>
#include <tuple>
#include <utility>

namespace spikeforge::ops::layers {
namespace {

using autograd::AutogradContext;
using autograd::variable_list;
using Ints = at::IntArrayRef;
using Divisor = std::optional<std::int64_t>;

// The saved non-tensor values of a rule.
struct KeptPool {
  Windows windows;
  bool ceil_mode = false;
  MeanOptions mean = {};
  c10::SymInt height = 0, width = 0;

  void save(AutogradContext* ctx) const {
    ctx->saved_data["windows"] = windows.list();
    ctx->saved_data["ceil_mode"] = ceil_mode;
    ctx->saved_data["counts_padding"] = mean.counts_padding;
    ctx->saved_data["divisor"] = mean.divisor;
    ctx->saved_data["height"] = height;
    ctx->saved_data["width"] = width;
  }
  static KeptPool of(AutogradContext* ctx) {
    const auto& data = ctx->saved_data;
    return {Windows::of("pool2d", data.at("windows").toIntVector()),
            data.at("ceil_mode").toBool(),
            {data.at("counts_padding").toBool(), data.at("divisor").toOptional<std::int64_t>()},
            data.at("height").toSymInt(),
            data.at("width").toSymInt()};
  }
};

at::Tensor max_pool_gradient(const at::Tensor& grad, AutogradContext* ctx, const KeptPool& kept) {
  return call_max_pool_backward(grad, ctx->get_saved_variables()[0], kept.windows, kept.height, kept.width);
}

at::Tensor max_backward_gradient(const at::Tensor& grad, AutogradContext* ctx, const KeptPool& kept) {
  return at_places(grad, ctx->get_saved_variables()[0], kept.windows);
}

at::Tensor mean_pool_gradient(const at::Tensor& grad, AutogradContext* /*ctx*/, const KeptPool& kept) {
  return call_mean_pool_backward(grad, kept.windows, kept.mean, kept.height, kept.width);
}

at::Tensor mean_backward_gradient(const at::Tensor& grad, AutogradContext* /*ctx*/, const KeptPool& kept) {
  return call_mean_pool(grad, kept.windows, kept.ceil_mode, kept.mean);
}

// The rule of an operator with this gradient.
template <at::Tensor (*gradient)(const at::Tensor&, AutogradContext*, const KeptPool&)> struct PoolRule {
  static constexpr bool is_traceable = true;
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor()};
    return {gradient(grads[0], ctx, KeptPool::of(ctx))};
  }
};

// Returns y = run(context), differentiable with respect to x: in reverse mode by Rule, for which `run` saves tensors if
// there is a context; in forward mode by of_tangent, since these functions are linear, at least for fixed positions.
template <class Rule, class Run, class OfTangent>
at::Tensor differentiable(const at::Tensor& x, const KeptPool& kept, const Run& run, const OfTangent& of_tangent) {
  const bool is_dual = autograd::has_tangent(x);
  at::Tensor y;
  if (autograd::wants_gradient(x)) {
    y = autograd::record<Rule>({x}, [&](AutogradContext* ctx) {
      ctx->set_materialize_grads(false);
      kept.save(ctx);
      return variable_list{run(ctx)};
    })[0];
  } else {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    y = run(nullptr);
  }
  if (is_dual) y._set_fw_grad(of_tangent(x._fw_grad(/*level=*/0)), /*level=*/0, /*is_inplace_op=*/false);
  return y;
}

KeptPool kept_of(const at::Tensor& x, const char* op, Ints windows) {
  return {.windows = Windows::of(op, windows), .height = x.sym_size(-2), .width = x.sym_size(-1)};
}

bool wants_derivative(const at::Tensor& x) { return autograd::wants_gradient(x) || autograd::has_tangent(x); }

// The positions are computed if a derivative is needed.
at::Tensor max_pool_autograd(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, Ints dilation,
                             bool ceil_mode, const MaybeTensor& weight) {
  constexpr const char* op = "max_pool2d";
  check_images(op, "x", x);
  const Windows windows = windows_of(op, kernel_size, stride, padding, dilation);
  check_windows_fit(op, windows, x, ceil_mode);
  if (wants_derivative(x)) return call_max_pool_with_places(x, windows, ceil_mode, weight).y;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_max_pool(x, windows, ceil_mode, weight);
}

std::tuple<at::Tensor, at::Tensor> with_places_autograd(const at::Tensor& x, Ints list, bool ceil_mode,
                                                        const MaybeTensor& weight) {
  constexpr const char* op = "max_pool2d_with_places";
  check_images(op, "x", x);
  const KeptPool kept = kept_of(x, op, list);
  at::Tensor which;
  const auto run = [&](AutogradContext* ctx) {
    Maxima maxima = call_max_pool_with_places(x, kept.windows, ceil_mode, weight);
    which = maxima.which;
    if (ctx != nullptr) ctx->save_for_backward({which});
    return maxima.y;
  };
  at::Tensor y = differentiable<PoolRule<max_pool_gradient>>(
      x, kept, run, [&](const at::Tensor& tangent) { return at_places(tangent, which, kept.windows); });
  return {std::move(y), std::move(which)};
}

at::Tensor max_backward_autograd(const at::Tensor& grad, const at::Tensor& which, Ints list, c10::SymInt height,
                                 c10::SymInt width) {
  const KeptPool kept{.windows = Windows::of("max_pool2d_backward", list), .height = height, .width = width};
  const auto of = [&](const at::Tensor& t) { return call_max_pool_backward(t, which, kept.windows, height, width); };
  const auto run = [&](AutogradContext* ctx) {
    if (ctx != nullptr) ctx->save_for_backward({which});
    return of(grad);
  };
  return differentiable<PoolRule<max_backward_gradient>>(grad, kept, run, of);
}

at::Tensor mean_pool_autograd(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding, bool ceil_mode,
                              bool counts_padding, Divisor divisor) {
  constexpr const char* op = "avg_pool2d";
  check_images(op, "x", x);
  KeptPool kept = kept_of(x, op, windows_of(op, kernel_size, stride, padding, {}).list());
  kept.ceil_mode = ceil_mode;
  kept.mean = {counts_padding, divisor};
  const auto of = [&](const at::Tensor& t) { return call_mean_pool(t, kept.windows, ceil_mode, kept.mean); };
  return differentiable<PoolRule<mean_pool_gradient>>(
      x, kept, [&](AutogradContext*) { return of(x); }, of);
}

at::Tensor mean_backward_autograd(const at::Tensor& grad, Ints list, bool counts_padding, Divisor divisor,
                                  c10::SymInt height, c10::SymInt width) {
  constexpr const char* op = "avg_pool2d_backward";
  check_images(op, "grad", grad);
  KeptPool kept{.windows = Windows::of(op, list), .mean = {counts_padding, divisor}, .height = height, .width = width};
  // ceil_mode is inferred from the sizes of grad.
  kept.ceil_mode = grad.sym_size(-2) != window_count(kept.windows, 0, height, false) ||
                   grad.sym_size(-1) != window_count(kept.windows, 1, width, false);
  const auto of = [&](const at::Tensor& t) {
    return call_mean_pool_backward(t, kept.windows, kept.mean, height, width);
  };
  return differentiable<PoolRule<mean_backward_gradient>>(
      grad, kept, [&](AutogradContext*) { return of(grad); }, of);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("max_pool2d", TORCH_FN(max_pool_autograd));
  library.impl("max_pool2d_with_places", TORCH_FN(with_places_autograd));
  library.impl("max_pool2d_backward", TORCH_FN(max_backward_autograd));
  library.impl("avg_pool2d", TORCH_FN(mean_pool_autograd));
  library.impl("avg_pool2d_backward", TORCH_FN(mean_backward_autograd));
}

}  // namespace

at::Tensor at_places(const at::Tensor& x, const at::Tensor& which, const Windows& windows) {
  const auto options = which.options().dtype(at::kLong).memory_format(std::nullopt);
  const auto along = [&](std::int64_t d, const at::Tensor& place) {
    const auto i = static_cast<std::size_t>(d + 2);
    at::Tensor begins = at::arange(at::Scalar(which.sym_size(d)), options) * windows.stride[i] - windows.padding[i];
    if (d == -2) begins = begins.unsqueeze(1);
    return begins + place * windows.dilation[i];
  };
  const at::Tensor places = which.to(at::kLong);
  const at::Tensor h = along(-2, places.div(windows.size[1], "floor")),
                   w = along(-1, places.remainder(windows.size[1]));
  const at::Scalar height(x.sym_size(-2)), width(x.sym_size(-1));
  // A window that is completely outside the image has no elements.
  const at::Tensor is_inside = h.ge(0).logical_and(h.lt(height)).logical_and(w.ge(0)).logical_and(w.lt(width));
  const at::Tensor index = at::where(is_inside, h * width + w, 0).flatten(-2);
  return at::where(is_inside, x.flatten(-2).gather(-1, index).view_symint(which.sym_sizes()), 0);
}

}  // namespace spikeforge::ops::layers
