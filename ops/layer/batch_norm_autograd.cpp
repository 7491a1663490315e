#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/record.h>
#include <spikeforge/ops/layer/batch_norm.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <tuple>

namespace spikeforge::ops::layers {
namespace {

using autograd::AutogradContext;
using autograd::variable_list;

// dx = g + dmean / n + 2 dvar (x - mean) / n: what the gradients of a tensor's statistics add to its own, in one pass.
constexpr std::string_view add_statistics =
    "neuron add_statistics(g, x; ; mean, offset, slope) { return g + (offset + slope * (x - mean)) }\n";
constexpr std::string_view of_statistics =
    "neuron of_statistics(x; ; mean, offset, slope) { return offset + slope * (x - mean) }\n";

struct StatisticsRule {
  static constexpr bool is_traceable = true;

  // Of mean, var and, where x was passed through, of x: so that one pass makes x's gradient of what comes to it
  // directly and by its statistics, rather than three.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (std::none_of(grads.begin(), grads.end(), [](const at::Tensor& t) { return t.defined(); }))
      return {at::Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const std::int64_t dim = ctx->saved_data.at("channel_dim").toInt();
    const bool is_differentiated =
        at::GradMode::is_enabled() || std::any_of(grads.begin(), grads.end(), autograd::has_tangent);
    const at::Tensor mean = is_differentiated ? call_channel_statistics(x, dim).first : saved[1];
    c10::SymInt numbers = 1;  // of a channel
    for (std::int64_t d = 0; d < x.dim(); ++d)
      if (d != dim) numbers = numbers * x.sym_size(d);
    const at::Scalar count(numbers);
    const auto share = [&](const at::Tensor& of_statistic, double factor) {
      return beside(of_statistic.defined() ? of_statistic * factor / count : at::zeros_like(mean), x, dim);
    };
    const List params{beside(mean, x, dim), share(grads[0], 1), share(grads[1], 2)};
    const bool passes = grads.size() > 2 && grads[2].defined();
    const List inputs = passes ? List{grads[2], x} : List{x};
    const std::string_view text = passes ? add_statistics : of_statistics;
    return {call_run(traced_call(text, inputs, /*states=*/{}, params, /*store_states=*/false)).outputs[0]};
  }
};

// Mean and variance of x that are recorded, and with `passes_x` an x whose gradient goes the same way.
variable_list recorded_statistics(const at::Tensor& x, std::int64_t channel_dim, bool passes_x) {
  return autograd::record<StatisticsRule>(x, [&](AutogradContext* ctx) {
    auto [mean, var] = call_channel_statistics(x, channel_dim);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, mean});
    ctx->saved_data["channel_dim"] = channel_dim < 0 ? channel_dim + x.dim() : channel_dim;
    variable_list results{mean, var};
    if (passes_x) {
      results.push_back(at::alias(x));
      // What is changed in place before the backward pass is noticed through either.
      torch::autograd::impl::set_version_counter(results[2], torch::autograd::impl::version_counter(x));
    }
    return results;
  });
}

std::tuple<at::Tensor, at::Tensor> statistics_autograd(const at::Tensor& x, std::int64_t channel_dim) {
  if (autograd::has_tangent(x)) return statistics_in_torch(x, channel_dim);
  if (autograd::wants_gradient(x)) {
    const variable_list statistics = recorded_statistics(x, channel_dim, /*passes_x=*/false);
    return {statistics[0], statistics[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_channel_statistics(x, channel_dim);
}

Results batch_norm_run_autograd(const LayerCall& call) {
  const at::Tensor& x = call.inputs[0];
  if (call.has_statistics() || !autograd::wants_gradient(x) || autograd::has_tangent(x)) return composed(call);
  const variable_list recorded = recorded_statistics(x, call.channel_dim, /*passes_x=*/true);
  List inputs(call.inputs.begin(), call.inputs.end());
  inputs[0] = recorded[2];
  LayerCall passed = call;
  passed.inputs = inputs;
  return composed(passed, recorded[0], recorded[1]);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("batch_norm_run", TORCH_FN(kernel<batch_norm_run_autograd>));
  library.impl("channel_statistics", TORCH_FN(statistics_autograd));
}

}  // namespace
}  // namespace spikeforge::ops::layers
