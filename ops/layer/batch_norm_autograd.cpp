#include <spikeforge/ops/common/derivatives.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/record.h>
#include <spikeforge/ops/layer/batch_norm.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/square.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace spikeforge::ops::layers {
namespace {

using autograd::AutogradContext;
using autograd::variable_list;

// dx = g + dmean / n + 2 dvar (x - mean) / n: what the gradients of a tensor's statistics add to its own, in one pass.
constexpr std::string_view add_statistics =
    "neuron add_statistics(g, x; ; mean, offset, slope) { return g + (offset + slope * (x - mean)) }\n";
constexpr std::string_view of_statistics =
    "neuron of_statistics(x; ; mean, offset, slope) { return offset + slope * (x - mean) }\n";

// Whether a backward pass is itself to be differentiated, or mapped over.
bool is_differentiated(const variable_list& grads) {
  return at::GradMode::is_enabled() || std::any_of(grads.begin(), grads.end(), autograd::has_tangent);
}

// `gradient`, which may be undefined, and what comes to x from the gradients of its mean and variance.
at::Tensor with_statistics(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& mean,
                           const at::Tensor& grad_mean, const at::Tensor& grad_var, std::int64_t channel_dim) {
  const at::Scalar count(x.sym_numel() / mean.sym_numel());
  const auto share = [&](const at::Tensor& of_statistic, double factor) {
    return beside(of_statistic.defined() ? of_statistic * factor / count : at::zeros_like(mean), x, channel_dim);
  };
  const List inputs = gradient.defined() ? List{gradient, x} : List{x};
  const List params{beside(mean, x, channel_dim), share(grad_mean, 1), share(grad_var, 2)};
  return call_run(traced_call(gradient.defined() ? add_statistics : of_statistics, inputs, /*states=*/{}, params,
                              /*store_states=*/false))
      .outputs[0];
}

// ---- channel_statistics ----

struct StatisticsRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::int64_t dim = ctx->saved_data.at("channel_dim").toInt();
    const at::Tensor& x = saved[0];
    const at::Tensor mean = is_differentiated(grads) ? call_channel_statistics(x, dim).first : saved[1];
    if (!grads[0].defined() && !grads[1].defined()) return {at::Tensor()};
    return {with_statistics({}, x, mean, grads[0], grads[1], dim)};
  }
};

std::tuple<at::Tensor, at::Tensor> statistics_autograd(const at::Tensor& x, std::int64_t channel_dim) {
  if (autograd::has_tangent(x)) return statistics_in_torch(x, channel_dim);
  const auto compute = [&] {
    const auto [mean, var] = call_channel_statistics(x, channel_dim);
    return variable_list{mean, var};
  };
  variable_list statistics;
  if (!autograd::wants_gradient(x)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    statistics = compute();
  } else {
    statistics = autograd::record<StatisticsRule>(x, [&](AutogradContext* ctx) {
      variable_list results = compute();
      ctx->set_materialize_grads(false);
      ctx->save_for_backward({x, results[0].detach()});
      ctx->saved_data["channel_dim"] = channel_dim < 0 ? channel_dim + x.dim() : channel_dim;
      return results;
    });
  }
  return {statistics[0], statistics[1]};
}

// ---- batch_norm_run, of a call that brings no statistics: x's gradient in one pass, rather than in three ----

// A call as autograd keeps it: its tensors in the order of the operator's arguments, without those that are not given.
class KeptLayer {
 public:
  static variable_list tensors_of(const LayerCall& call) {
    variable_list list;
    for (const at::TensorList part : {call.inputs, call.states, call.params})
      list.insert(list.end(), part.begin(), part.end());
    for (const at::Tensor* t : {&call.weight, &call.bias, &call.residual})
      if (t->defined()) list.push_back(*t);
    return list;
  }

  static void save(AutogradContext* ctx, const LayerCall& call, variable_list tensors) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(std::move(tensors));
    ctx->saved_data["neuron"] = std::string(call.neuron);
    ctx->saved_data["residual_mode"] = std::string(call.residual_mode);
    ctx->saved_data["eps"] = call.eps;
    const auto count = [](at::TensorList list) { return static_cast<std::int64_t>(list.size()); };
    ctx->saved_data["call"] =
        c10::List<std::int64_t>({count(call.inputs), count(call.states), count(call.params), call.weight.defined(),
                                 call.bias.defined(), call.residual.defined(), call.channel_dim, call.store_states});
  }

  explicit KeptLayer(AutogradContext* ctx)
      : tensors_(ctx->get_saved_variables()),
        neuron_(ctx->saved_data.at("neuron").toStringRef()),
        residual_mode_(ctx->saved_data.at("residual_mode").toStringRef()) {
    const c10::List<std::int64_t> numbers = ctx->saved_data.at("call").toIntList();
    std::size_t read = 0, taken = 0;
    const auto next = [&] { return numbers.get(read++); };
    const auto list = [&] {
      const auto count = static_cast<std::size_t>(next());
      taken += count;
      return at::TensorList(tensors_).slice(taken - count, count);
    };
    const auto maybe = [&] { return next() != 0 ? tensors_[taken++] : at::Tensor(); };
    call.neuron = neuron_;
    call.inputs = list();
    call.states = list();
    call.params = list();
    call.weight = maybe();
    call.bias = maybe();
    call.residual = maybe();
    call.residual_mode = residual_mode_;
    call.eps = ctx->saved_data.at("eps").toDouble();
    call.channel_dim = next();
    call.store_states = next() != 0;
    count = taken;
  }
  KeptLayer(const KeptLayer&) = delete;
  KeptLayer& operator=(const KeptLayer&) = delete;

  LayerCall call;
  std::size_t count = 0;  // of the call's tensors

  // Of what was saved behind them: mean, var, checkpoints.
  const at::Tensor& behind(std::size_t i) const { return tensors_[count + i]; }

 private:
  variable_list tensors_;
  std::string neuron_, residual_mode_;
};

struct BatchNormRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const KeptLayer kept(ctx);
    const LayerCall& call = kept.call;
    const at::Tensor& x = call.inputs[0];
    at::Tensor mean = kept.behind(0), var = kept.behind(1);
    const bool again = is_differentiated(grads);
    if (again) std::tie(mean, var) = call_channel_statistics(x, call.channel_dim);

    AsRun as(call, mean, var);
    BackwardCall& run = as.run;
    const std::size_t outputs = run.cell->outputs.size(), states = run.cell->states.size();
    run.grad_outputs = at::TensorList(grads).slice(0, outputs);
    run.grad_states = at::TensorList(grads).slice(outputs, states);
    run.checkpoints = kept.behind(2);

    // Which gradients of `run` the wanted ones are made of; those of inputs, states and parameters are their own.
    std::size_t next = 0;
    const auto wanted = [&] { return ctx->needs_input_grad(next++); };
    run.needs_grad.assign(run.cell->arguments(), false);
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) own.push_back(as.argument_of_input(i));
    for (std::size_t s = 0; s < call.states.size(); ++s) own.push_back(as.argument_of_state(s));
    for (std::size_t j = 0; j < call.params.size(); ++j) own.push_back(as.argument_of_param(j));
    for (const std::size_t argument : own) run.needs_grad[argument] = wanted();
    const bool wants_x = run.needs_grad[0];
    const bool wants_weight = call.weight.defined() && wanted(), wants_bias = call.bias.defined() && wanted();
    if (call.residual.defined()) run.needs_grad[as.argument_of_residual()] = wanted();
    run.needs_grad[as.argument_of_scale()] = wants_x || wants_weight;
    run.needs_grad[as.argument_of_shift()] = wants_x || wants_bias;

    const bool any_grad = std::any_of(grads.begin(), grads.begin() + static_cast<std::ptrdiff_t>(outputs + states),
                                      [](const at::Tensor& t) { return t.defined(); });
    ByArgument of_run(run.cell->arguments());
    if (any_grad) of_run = gradients_by_argument(run, run_backward(run, again));

    variable_list list;
    for (const std::size_t argument : own) list.push_back(of_run[argument]);
    const auto flat = [&](std::size_t argument) {
      return of_run[argument].defined() ? of_run[argument].view_symint(mean.sym_sizes()) : at::Tensor();
    };
    const at::Tensor grad_scale = flat(as.argument_of_scale()), grad_shift = flat(as.argument_of_shift());
    if (wants_x)
      list[0] = grad_x(call, as, mean, of_run[0], grad_scale, grad_shift, grads[outputs + states],
                       grads[outputs + states + 1]);
    if (call.weight.defined())
      list.push_back(wants_weight && any_grad ? as_type(grad_scale * as.rstd, call.weight.scalar_type())
                                              : at::Tensor());
    if (call.bias.defined())
      list.push_back(wants_bias && any_grad ? as_type(grad_shift, call.bias.scalar_type()) : at::Tensor());
    if (call.residual.defined()) list.push_back(of_run[as.argument_of_residual()]);
    return list;
  }

 private:
  // Unless something differentiates the backward pass, autograd's kernel of run_backward has nothing to do.
  static Tensors run_backward(const BackwardCall& run, bool is_differentiated) {
    if (is_differentiated) return call_run_backward(run);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_run_backward(run);
  }

  // y = (x - mean) scale + shift, where scale = weight (var + eps)^-1/2: what comes by way of mean and var, besides the
  // gradients that were sent to them as results.
  static at::Tensor grad_x(const LayerCall& call, const AsRun& as, const at::Tensor& mean,
                           const at::Tensor& through_run, const at::Tensor& grad_scale, const at::Tensor& grad_shift,
                           at::Tensor grad_mean, at::Tensor grad_var) {
    if (grad_scale.defined()) {
      const at::Tensor scale = call.weight.defined() ? as.rstd * call.weight : as.rstd;
      const at::Tensor of_mean = -(grad_shift * scale), of_var = grad_scale * scale * as.rstd.square() * -0.5;
      grad_mean = grad_mean.defined() ? grad_mean + of_mean : of_mean;
      grad_var = grad_var.defined() ? grad_var + of_var : of_var;
    }
    if (!grad_mean.defined() && !grad_var.defined()) return through_run;
    return with_statistics(through_run, call.inputs[0], mean, grad_mean, grad_var, call.channel_dim);
  }
};

bool has_tangents(const LayerCall& call) {
  const variable_list tensors = KeptLayer::tensors_of(call);
  return std::any_of(tensors.begin(), tensors.end(), autograd::has_tangent) || autograd::has_tangent(call.mean) ||
         autograd::has_tangent(call.var);
}

Results batch_norm_run_autograd(const LayerCall& call) {
  const variable_list given = KeptLayer::tensors_of(call);
  if (call.has_statistics() || has_tangents(call)) return composed(call);
  if (std::none_of(given.begin(), given.end(), autograd::wants_gradient)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return composed(call);
  }
  std::size_t outputs = 0;
  const variable_list results = autograd::record<BatchNormRule>(given, [&](AutogradContext* ctx) {
    auto [mean, var] = statistics_of(call);
    const AsRun as(call, mean, var);
    const MultistepResults run = call_run_forward(as.run, /*save=*/true);
    variable_list all(run.outputs.begin(), run.outputs.end());
    outputs = all.size();
    all.insert(all.end(), run.states.begin(), run.states.end());
    variable_list saved = given;
    saved.insert(saved.end(), {mean.detach(), var.detach(), run.checkpoints});
    KeptLayer::save(ctx, call, std::move(saved));
    all.insert(all.end(), {mean, var});
    return all;
  });
  const auto end = results.end();
  return {List(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(outputs)),
          List(results.begin() + static_cast<std::ptrdiff_t>(outputs), end - 2), *(end - 2), *(end - 1)};
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("batch_norm_run", TORCH_FN(kernel<batch_norm_run_autograd>));
  library.impl("channel_statistics", TORCH_FN(statistics_autograd));
}

}  // namespace
}  // namespace spikeforge::ops::layers
