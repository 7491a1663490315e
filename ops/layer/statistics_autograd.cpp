// Derivatives of the statistics of channels, alone and together with max pooling of the same tensor.
#include "ops/common/library.h"
#include "ops/layer/batch_norm.h"
#include "ops/layer/pooling.h"
#include "ops/multistep/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <cstdint>
#include <string_view>
#include <tuple>

namespace spikeforge::ops::layers {
namespace {

using namespace autograd;
using Ints = at::IntArrayRef;

// The contribution of its statistics to the gradient of a tensor is dmean / n + 2 dvar (x - mean) / n.
struct ByStatistics {
  at::Tensor offset, slope;  // [C]

  ByStatistics(const at::Tensor& grad_mean, const at::Tensor& grad_var, const at::Tensor& mean,
               const at::Scalar& numbers) {
    const auto share = [&](const at::Tensor& grad, double factor) {
      return grad.defined() ? grad * factor / numbers : at::zeros_like(mean);
    };
    offset = share(grad_mean, 1);
    slope = share(grad_var, 2);
  }
};

// The text is on one line, as all texts that may be in a graph of torch.compile (graph::on_a_line).
constexpr std::string_view of_statistics =
    "neuron of_statistics(x; ; mean, offset, slope) { return offset + slope * (x - mean) }";

// `mean` is that of x; it is recomputed if the result is differentiated.
at::Tensor gradient_by_statistics(const at::Tensor& x, std::int64_t dim, const at::Tensor& mean,
                                  const ByStatistics& shares) {
  const List inputs{x}, params{beside(mean, x, dim), beside(shares.offset, x, dim), beside(shares.slope, x, dim)};
  return call_run(traced_call(of_statistics, inputs, /*states=*/{}, params, /*store_states=*/false)).outputs[0];
}

struct StatisticsRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined() && !grads[1].defined()) return {at::Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = Recomputed::restored(ctx, "x", saved[0]);
    const std::int64_t dim = ctx->saved_data.at("channel_dim").toInt();
    const at::Tensor mean = is_differentiated(grads) ? call_channel_statistics(x, dim).first : saved[1];
    return {gradient_by_statistics(x, dim, mean, {grads[0], grads[1], mean, numbers_of_a_channel(x, dim)})};
  }
};

std::tuple<at::Tensor, at::Tensor> statistics_autograd(const at::Tensor& x, std::int64_t channel_dim) {
  if (has_tangent(x)) return statistics_in_torch(x, channel_dim);
  if (wants_gradient(x)) {
    const variable_list statistics = record<StatisticsRule>(x, [&](AutogradContext* ctx) {
      auto [mean, var] = call_channel_statistics(x, channel_dim);
      ctx->set_materialize_grads(false);
      ctx->save_for_backward({Recomputed::keep(ctx, "x", x), mean});
      ctx->saved_data["channel_dim"] = channel_dim < 0 ? channel_dim + x.dim() : channel_dim;
      return variable_list{mean, var};
    });
    return {statistics[0], statistics[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_channel_statistics(x, channel_dim);
}

// Maxima and statistics as one node. It saves x and the positions of the maxima, and computes x's gradient in one pass.
struct PooledStatisticsRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor &of_maxima = grads[0], &of_mean = grads[1], &of_var = grads[2];
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &which = saved[1], &kept_mean = saved[2];
    const Windows windows = Windows::of(pooled_statistics_op, ctx->saved_data.at("windows").toIntVector());
    const c10::SymInt height = ctx->saved_data.at("height").toSymInt(), width = ctx->saved_data.at("width").toSymInt();
    const bool by_statistics = of_mean.defined() || of_var.defined();
    if (!by_statistics && !of_maxima.defined()) return {at::Tensor()};
    const auto by_maxima = [&] { return call_max_pool_backward(of_maxima, which, windows, height, width); };
    if (!by_statistics) return {by_maxima()};
    const at::Tensor x = Recomputed::restored(ctx, "x", saved[0]);
    const std::int64_t dim = channels_of_images(x);
    const bool again = is_differentiated(grads);
    const at::Tensor mean = again ? call_channel_statistics(x, dim).first : kept_mean;
    const ByStatistics shares(of_mean, of_var, mean, numbers_of_a_channel(x, dim));
    if (!of_maxima.defined()) return {gradient_by_statistics(x, dim, mean, shares)};
    if (again) return {by_maxima() + gradient_by_statistics(x, dim, mean, shares)};
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return {call_statistics_backward(of_maxima, which, x, mean, shares.offset, shares.slope, windows)};
  }
};

PooledStatistics pooled_statistics_autograd(const at::Tensor& x, Ints kernel_size, Ints stride, Ints padding,
                                            bool ceil_mode, const MaybeTensor& weight) {
  const Windows windows = check_pooled_statistics(x, kernel_size, stride, padding, ceil_mode, weight);
  const std::int64_t dim = channels_of_images(x);
  if (has_tangent(x)) {
    const auto [mean, var] = statistics_in_torch(x, dim);
    return {call_max_pool_with_places(x, windows, ceil_mode, weight).y, mean, var};
  }
  if (wants_gradient(x) && x.sym_numel() != 0) {
    const variable_list results = record<PooledStatisticsRule>(x, [&](AutogradContext* ctx) {
      const Maxima maxima = call_max_pool_with_places(x, windows, ceil_mode, weight);
      const auto [mean, var] = call_channel_statistics(x, dim);
      ctx->set_materialize_grads(false);
      ctx->save_for_backward({Recomputed::keep(ctx, "x", x), maxima.which, mean});
      ctx->saved_data["windows"] = windows.list();
      ctx->saved_data["height"] = x.sym_size(-2);
      ctx->saved_data["width"] = x.sym_size(-1);
      return variable_list{maxima.y, mean, var};
    });
    return {results[0], results[1], results[2]};
  }
  return pooled_statistics(x, windows, ceil_mode, weight);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("channel_statistics", TORCH_FN(statistics_autograd));
  library.impl(pooled_statistics_op, TORCH_FN(pooled_statistics_autograd));
  library.impl("max_pool2d_statistics_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::layers
