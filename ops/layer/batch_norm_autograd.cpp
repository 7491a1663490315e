#include <spikeforge/jit/recorder.h>
#include <spikeforge/ops/common/autograd.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/layer/batch_norm.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

namespace spikeforge::ops::layers {
namespace {

using namespace autograd;

// What the gradients of a tensor's statistics come to, dmean / n + 2 dvar (x - mean) / n, and its own with that, in one
// pass.
// On one line each, as all texts that torch.compile may meet (graph::on_a_line).
constexpr std::string_view of_statistics =
    "neuron of_statistics(x; ; mean, offset, slope) { return offset + slope * (x - mean) }";
constexpr std::string_view add_statistics =
    "neuron add_statistics(g, x; ; mean, offset, slope) { return g + (offset + slope * (x - mean)) }";
// What a normalisation makes of its statistics: x becomes (x - mean) * scale + shift.
constexpr std::string_view of_layer =
    "neuron of_layer(mean, var, weight, bias; ; eps) {"
    " rstd = 1 / sqrt(var + eps); return mean, rstd, rstd * weight, bias }";
// The gradient of a weight, and offset and slope, of those of scale and shift.
constexpr std::string_view of_channels =
    "neuron of_channels(of_scale, of_shift, rstd, scale; ; count) {"
    " w = of_scale * rstd; share = scale / count; return w, -(of_shift * share), -(w * rstd * share) }";

at::Scalar numbers_of_a_channel(const at::Tensor& x, std::int64_t channel_dim) {
  c10::SymInt numbers = 1;
  for (std::int64_t d = 0; d < x.dim(); ++d)
    if (d != channel_dim) numbers = numbers * x.sym_size(d);
  return {numbers};
}

// A parameter for a neuron beside t: it is read when the call is made, and waits for nothing.
at::Tensor on_the_host(const at::Scalar& number, const at::Tensor& t) {
  return at::full({}, number, t.options().device(c10::kCPU));
}

bool is_differentiated(const variable_list& grads) { return at::GradMode::is_enabled() || any_dual(grads); }

struct StatisticsRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined() && !grads[1].defined()) return {at::Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const std::int64_t dim = ctx->saved_data.at("channel_dim").toInt();
    const at::Tensor mean = is_differentiated(grads) ? call_channel_statistics(x, dim).first : saved[1];
    const at::Scalar numbers = numbers_of_a_channel(x, dim);
    const auto share = [&](const at::Tensor& of_statistic, double factor) {
      return beside(of_statistic.defined() ? of_statistic * factor / numbers : at::zeros_like(mean), x, dim);
    };
    const List inputs{x}, params{beside(mean, x, dim), share(grads[0], 1), share(grads[1], 2)};
    return {call_run(traced_call(of_statistics, inputs, /*states=*/{}, params, /*store_states=*/false)).outputs[0]};
  }
};

std::tuple<at::Tensor, at::Tensor> statistics_autograd(const at::Tensor& x, std::int64_t channel_dim) {
  if (has_tangent(x)) return statistics_in_torch(x, channel_dim);
  if (wants_gradient(x)) {
    const variable_list statistics = record<StatisticsRule>(x, [&](AutogradContext* ctx) {
      auto [mean, var] = call_channel_statistics(x, channel_dim);
      ctx->set_materialize_grads(false);
      ctx->save_for_backward({x, mean});
      ctx->saved_data["channel_dim"] = channel_dim < 0 ? channel_dim + x.dim() : channel_dim;
      return variable_list{mean, var};
    });
    return {statistics[0], statistics[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_channel_statistics(x, channel_dim);
}

// A layer with the statistics of its own x, as one node: it keeps x, what else its neuron takes, and a few numbers a
// channel. On a GPU, where passes over memory are what costs, x's gradient takes two: the first for sums over channels;
// the second makes the neuron's derivative once more, with what the statistics add to it.
struct BatchNormRule {
  static constexpr bool is_traceable = true;

  static Results recorded(const LayerCall& layer) {
    const at::Tensor& x = layer.inputs[0];
    at::Tensor mean, var, center, rstd, scale, shift;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      std::tie(mean, var) = call_channel_statistics(x, layer.channel_dim);
      // In the call's place for them; their own gradients go to weight, bias and x. Copies below this level of autograd
      // alone, so that those of torch.func above it still see where they come from.
      const auto row = [&](const at::Tensor& t, double otherwise) {
        if (!t.defined()) return at::full_like(mean, otherwise).unsqueeze(0);
        return (t.scalar_type() == mean.scalar_type() ? t : t.to(mean.scalar_type())).unsqueeze(0);
      };
      const List numbers{mean.unsqueeze(0), var.unsqueeze(0), row(layer.weight, 1), row(layer.bias, 0)};
      const List eps{on_the_host(layer.eps, mean)};
      Tensors made = call_run(traced_call(of_layer, numbers, /*states=*/{}, eps, /*store_states=*/false)).outputs;
      for (at::Tensor& of_channels : made) of_channels = of_channels.squeeze(0);
      center = made[0], rstd = made[1], scale = made[2], shift = made[3];
    }
    const std::shared_ptr<const TracedCell> cell = layer_cell(layer);
    const LayerArguments arguments(layer, center, scale, shift);
    const MultistepCall call =
        traced_call(cell->text, arguments.inputs, layer.states, arguments.params, layer.store_states);
    variable_list given = given_tensors(call);
    for (const at::Tensor* t : {&layer.weight, &layer.bias})
      if (t->defined()) given.push_back(*t);

    MultistepResults results;
    record<BatchNormRule>(given, [&](AutogradContext* ctx) {
      results = call_run_forward(call, /*save=*/true);
      variable_list saved = given;
      saved.insert(saved.end(), {rstd, results.checkpoints});
      Kept::save(ctx, call, std::move(saved));
      ctx->saved_data["has_weight"] = layer.weight.defined();
      ctx->saved_data["has_bias"] = layer.bias.defined();
      ctx->saved_data["channel_dim"] = layer.channel_dim;
      ctx->saved_data["eps"] = layer.eps;
      if (x.is_cuda() || jit::recorder() != nullptr) {
        const auto extended = layer_cell(layer, /*with_statistics=*/true);
        // A longer cell may have its checkpoints elsewhere.
        const DType type = dtype_of(x.scalar_type());
        if (extended->checkpoint_length(type) == cell->checkpoint_length(type))
          ctx->saved_data["with_statistics"] = extended->text;
      }
      variable_list all(results.outputs.begin(), results.outputs.end());
      all.insert(all.end(), results.states.begin(), results.states.end());
      all.insert(all.end(), {mean, var});
      return all;
    });
    return {traced::list_of(results.outputs), traced::list_of(results.states), mean, var};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    Kept kept(ctx);
    BackwardCall& call = kept.call;
    const std::size_t outputs = call.cell->outputs.size(), states = call.cell->states.size();
    call.grad_outputs = at::TensorList(grads).slice(0, outputs);
    call.grad_states = at::TensorList(grads).slice(outputs, states);
    call.checkpoints = kept.tensors().back();
    const at::Tensor& x = kept.tensors()[0];
    Channels channels(ctx, kept);
    ByArgument arguments = tensors_of(call);
    const std::size_t mean_at = call.cell->arguments() - 3, scale_at = mean_at + 1, shift_at = mean_at + 2;
    const bool differentiated = is_differentiated(grads) || any_dual(call);
    if (differentiated) {
      // Whose derivatives are wanted too.
      const auto [mean, var] = call_channel_statistics(x, channels.dim);
      const Scale factors = scale_of(var, channels.weight, channels.eps);
      channels.rstd = factors.rstd;
      arguments[mean_at] = beside(mean, x, channels.dim);
      arguments[scale_at] = beside(factors.scale, x, channels.dim);
      if (channels.bias.defined()) arguments[shift_at] = beside(channels.bias, x, channels.dim);
      set_tensors(call, arguments);
    }
    const auto with_statistics = ctx->saved_data.find("with_statistics");
    const bool in_two_passes = !differentiated && with_statistics != ctx->saved_data.end();

    call.needs_grad = kept.wanted();
    const bool wants_x = call.needs_grad[0];
    call.needs_grad[0] = wants_x && !in_two_passes;
    call.needs_grad[scale_at] = wants_x || channels.wants_weight;
    call.needs_grad[shift_at] = wants_x || channels.wants_bias;
    ByArgument found = gradients_by_argument(call, call_run_backward(call));
    const at::Tensor of_shift = std::exchange(found[shift_at], {}), of_scale = std::exchange(found[scale_at], {});

    at::Tensor of_weight;
    if (wants_x) {
      Shares shares(of_scale, of_shift, arguments[scale_at], channels.rstd, numbers_of_a_channel(x, channels.dim));
      shares.add(grads[outputs + states], grads[outputs + states + 1]);
      of_weight = shares.of_weight;
      const at::Tensor offset = beside(shares.offset, x, channels.dim), slope = beside(shares.slope, x, channels.dim);
      found[0] = in_two_passes ? second_pass(call, with_statistics->second.toStringView(), offset, slope)
                               : with_share(found[0], x, arguments[mean_at], offset, slope);
    } else if (channels.wants_weight) {
      of_weight = of_scale.flatten() * channels.rstd;
    }
    variable_list all = kept.placed(found);
    const auto add = [&](const at::Tensor& of, bool is_wanted, const at::Tensor& gradient) {
      if (of.defined()) all.push_back(is_wanted ? gradient.flatten().to(of.scalar_type()) : at::Tensor());
    };
    add(channels.weight, channels.wants_weight, of_weight);
    add(channels.bias, channels.wants_bias, of_shift);
    return all;
  }

 private:
  // What is kept besides the call.
  struct Channels {
    Channels(AutogradContext* ctx, const Kept& kept)
        : dim(ctx->saved_data.at("channel_dim").toInt()), eps(ctx->saved_data.at("eps").toDouble()) {
      std::size_t next = kept.count();
      const auto take = [&](const char* has, at::Tensor& to, bool& is_wanted) {
        if (!ctx->saved_data.at(has).toBool()) return;
        is_wanted = ctx->needs_input_grad(next);
        to = kept.tensors()[next++];
      };
      take("has_weight", weight, wants_weight);
      take("has_bias", bias, wants_bias);
      rstd = kept.tensors()[next];
    }

    std::int64_t dim;
    double eps;
    at::Tensor weight, bias, rstd;
    bool wants_weight = false, wants_bias = false;
  };

  // Of the gradients of scale and shift: the weight's, and what the statistics contribute to x's.
  struct Shares {
    Shares(const at::Tensor& of_scale, const at::Tensor& of_shift, const at::Tensor& scale, const at::Tensor& rstd,
           at::Scalar given_numbers)
        : numbers(std::move(given_numbers)) {
      const auto row = [&](const at::Tensor& t) { return t.flatten().to(rstd.scalar_type()).unsqueeze(0); };
      const List sums{row(of_scale), row(of_shift), row(rstd), row(scale)};
      const List count{on_the_host(numbers, rstd)};
      const Tensors shares =
          call_run(traced_call(of_channels, sums, /*states=*/{}, count, /*store_states=*/false)).outputs;
      of_weight = shares[0].squeeze(0);
      offset = shares[1].squeeze(0);
      slope = shares[2].squeeze(0);
    }

    // Gradients that came by the statistics themselves.
    void add(const at::Tensor& of_mean, const at::Tensor& of_var) {
      if (of_mean.defined()) offset = offset + of_mean / numbers;
      if (of_var.defined()) slope = slope + of_var * 2 / numbers;
    }

    at::Scalar numbers;
    at::Tensor of_weight, offset, slope;
  };

  static at::Tensor with_share(const at::Tensor& of_x, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& offset, const at::Tensor& slope) {
    const List inputs{of_x, x}, params{mean, offset, slope};
    return call_run(traced_call(add_statistics, inputs, /*states=*/{}, params, /*store_states=*/false)).outputs[0];
  }

  // The gradient of x, by the statistics too.
  static at::Tensor second_pass(const BackwardCall& first, std::string_view text, const at::Tensor& offset,
                                const at::Tensor& slope) {
    List params(first.params.begin(), first.params.end());
    params.insert(params.end(), {offset, slope});
    BackwardCall call;
    static_cast<MultistepCall&>(call) =
        traced_call(text, first.inputs, traced::given_states(first), params, first.store_states);
    const at::Tensor& x = first.inputs[0];
    Tensors grads(first.grad_outputs.begin(), first.grad_outputs.end());
    grads.push_back(at::ones({}, x.options()).expand_symint(x.sym_sizes()));
    call.grad_outputs = grads;
    call.grad_states = first.grad_states;
    call.checkpoints = first.checkpoints;
    call.needs_grad.resize(call.cell->arguments());
    call.needs_grad[0] = true;
    return call_run_backward(call)[0];
  }
};

Results batch_norm_run_autograd(const LayerCall& call) {
  const auto own = call.own();
  const bool any_tangent = any_dual(call.inputs) || any_dual(call.states) || any_dual(call.params) || any_dual(own);
  if (call.has_statistics() || !wants_gradient(call.inputs[0]) || any_tangent) return composed(call);
  return BatchNormRule::recorded(call);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("batch_norm_run", TORCH_FN(kernel<batch_norm_run_autograd>));
  library.impl("channel_statistics", TORCH_FN(statistics_autograd));
}

}  // namespace
}  // namespace spikeforge::ops::layers
