#include "ops/layer/batch_norm.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/common/tangents.h"
#include "ops/layer.h"
#include "ops/multistep/derived_texts.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>

namespace spikeforge::ops::layers {
namespace {

SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "batch_norm_run(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, Tensor? weight=None, "
      "Tensor? bias=None, Tensor? mean=None, Tensor? var=None, Tensor? residual=None, *, str residual_mode=\"add\", "
      "int channel_dim=2, float eps=1e-05, bool store_states=False, int bits=0, bool last_states=True) -> "
      "(Tensor[] outputs, Tensor[] states, Tensor mean, Tensor var)");
  library.def(
      "batch_norm_run_tracked(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, Tensor(a!) running_mean, "
      "Tensor(b!) running_var, Tensor(c!) num_batches_tracked, Tensor? weight=None, Tensor? bias=None, "
      "Tensor? residual=None, *, str residual_mode=\"add\", int channel_dim=2, float eps=1e-05, float? momentum=0.1, "
      "bool store_states=False, int bits=0, bool last_states=True) -> (Tensor[] outputs, Tensor[] states)",
      {});
}

using BatchNormRun = Results(std::string_view, at::TensorList, at::TensorList, at::TensorList, const MaybeTensor&,
                             const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                             std::string_view, std::int64_t, double, bool, std::int64_t, bool);

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl(batch_norm_op, TORCH_FN(kernel<inference>));
  library.impl(tracked_op, TORCH_FN(tracked_kernel<inference>));
}
// Handles a call without any tensor, for which there is no other kernel, so that it raises an error.
SPIKEFORGE_KERNELS(Undefined, library) { library.impl(batch_norm_op, TORCH_FN(kernel<inference>)); }
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { library.impl(batch_norm_op, TORCH_FN(kernel<composed>)); }

}  // namespace

std::int64_t dim_of_channels(const Leader& leader, std::int64_t channel_dim) {
  const std::int64_t dims = leader.tensor.dim();
  const std::int64_t dim = channel_dim < 0 ? channel_dim + dims : channel_dim;
  TORCH_CHECK_VALUE(dim > 0 && dim < dims, leader.op, ": channel_dim must be a dimension of ", leader.name,
                    " other than time, but is ", channel_dim, " where ", leader.name, " has shape ",
                    leader.tensor.sym_sizes());
  return dim;
}

graph::Residual residual_named(const char* op, std::string_view mode) {
  const auto residual = graph::residual_of(mode);
  TORCH_CHECK_VALUE(residual.has_value(), op, ": residual_mode must be add, and, iand or membrane, but is '", mode,
                    "'");
  return *residual;
}

void check(const LayerCall& call) {
  const MultistepCall neuron = traced_call(call.neuron, call.inputs, call.states, call.params, call.store_states);
  refuse_draws(*neuron.cell, batch_norm_op);
  const at::Tensor& x = call.inputs[0];
  const Leader leader{call.op, neuron.cell->inputs[0].c_str(), x};
  check_leader(leader);
  const c10::SymInt channels = x.sym_size(dim_of_channels(leader, call.channel_dim));
  const std::array<std::pair<const char*, const at::Tensor*>, 4> of_channels{
      {{"weight", &call.weight}, {"bias", &call.bias}, {"mean", &call.mean}, {"var", &call.var}}};
  for (const auto& [name, numbers] : of_channels) {
    if (!numbers->defined()) continue;
    TORCH_CHECK_VALUE(numbers->dim() == 1 && numbers->sym_size(0) == channels, call.op, ": ", name,
                      " must have shape [", channels, "], one number for each channel, but has ", numbers->sym_sizes());
    check_type(leader, name, *numbers);
    check_device(leader, name, *numbers);
  }
  TORCH_CHECK_VALUE(call.mean.defined() == call.var.defined(), call.op,
                    ": pass both mean and var, or neither to compute them from ", leader.name);
  TORCH_CHECK_VALUE(std::isfinite(call.eps) && call.eps >= 0, call.op, ": eps must be finite and not below 0, but is ",
                    call.eps);
  residual_named(call.op, call.residual_mode);
  if (call.bits != 0) check_bits(call.op, call.bits);
  TORCH_CHECK_VALUE(call.last_states || !call.store_states, call.op,
                    ": store_states=True returns the states after every step, which excludes last_states=False");
  if (call.residual.defined()) {
    TORCH_CHECK_VALUE(call.residual.sym_sizes() == x.sym_sizes(), call.op, ": residual must have shape ", x.sym_sizes(),
                      ", that of ", leader.name, ", but has ", call.residual.sym_sizes());
    check_same_type(leader, "residual", call.residual);
    check_device(leader, "residual", call.residual);
  }
  if (call.has_statistics()) return;
  const auto numbers = x.sym_numel().maybe_as_int(), of = channels.maybe_as_int();
  TORCH_CHECK_VALUE(!numbers || !of || *numbers == 0 || *numbers / *of > 1, call.op,
                    ": statistics need more than one number for each channel, but ", leader.name, " has shape ",
                    x.sym_sizes(), "; pass mean and var, or call eval() on a module");
}

void check(const Running& running, const LayerCall& call) {
  const at::Tensor& x = call.inputs[0];
  const Leader leader{tracked_op, "x", x};
  const c10::SymInt channels = x.sym_size(call.channel_dim);
  for (const auto& [name, t] : {std::pair("running_mean", &running.mean), std::pair("running_var", &running.var)}) {
    TORCH_CHECK_VALUE(t->dim() == 1 && t->sym_size(0) == channels, tracked_op, ": ", name, " must have shape [",
                      channels, "], one number for each channel, but has ", t->sym_sizes());
    check_type(leader, name, *t);
    TORCH_CHECK_VALUE(!t->requires_grad() && t->is_contiguous(), tracked_op, ": ", name,
                      " must be contiguous and without a gradient, since it is changed");
    check_device(leader, name, *t);
  }
  const at::Tensor& batches = running.batches;
  TORCH_CHECK_TYPE(batches.scalar_type() == at::kLong, tracked_op, ": num_batches_tracked must be int64, but is ",
                   batches.scalar_type());
  TORCH_CHECK_VALUE(batches.dim() == 0, tracked_op, ": num_batches_tracked must be one number, but has shape ",
                    batches.sym_sizes());
  check_device(leader, "num_batches_tracked", batches);
  const auto check_apart = [&](const at::Tensor& t, bool is_own = false) {
    for (const auto& [name, changed] :
         {std::pair("running_mean", &running.mean), std::pair("running_var", &running.var),
          std::pair("num_batches_tracked", &batches)})
      TORCH_CHECK_VALUE(!t.defined() || (is_own && t.is_same(*changed)) ||
                            at::get_overlap_status(t, *changed) == at::MemOverlapStatus::No,
                        tracked_op, ": ", name, " must not share memory with another argument, since it is changed");
  };
  for (const at::TensorList list : {call.inputs, call.states, call.params})
    for (const at::Tensor& t : list) check_apart(t);
  for (const at::Tensor& t : call.own()) check_apart(t);
  for (const at::Tensor* t : {&running.mean, &running.var, &batches}) check_apart(*t, /*is_own=*/true);
  TORCH_CHECK_VALUE(!running.momentum || std::isfinite(*running.momentum), tracked_op,
                    ": momentum must be finite or None, but is ", running.momentum.value_or(0));
}

void move_running(Running& running, const LayerCall& call, const at::Tensor& mean, const at::Tensor& var) {
  if (running.is_moved) return;
  const at::NoGradGuard no_grad;
  const at::Scalar count = numbers_of_a_channel(call.inputs[0], call.channel_dim);
  running.batches.add_(1);
  if (call.inputs[0].numel() == 0) return;
  const auto move = [&](const at::Tensor& to, const at::Tensor& now) {
    const at::Tensor here = now.detach().to(to.scalar_type());
    if (running.momentum)
      to.lerp_(here, *running.momentum);
    else
      to.lerp_(here, running.batches.to(to.scalar_type()).reciprocal());
  };
  move(running.mean, mean);
  move(running.var, var.detach() * (count.toDouble() / (count.toDouble() - 1)));
}

LayerCall checked_call(const char* op, std::string_view neuron, at::TensorList inputs, at::TensorList states,
                       at::TensorList params, const MaybeTensor& weight, const MaybeTensor& bias,
                       const MaybeTensor& mean, const MaybeTensor& var, const MaybeTensor& residual,
                       std::string_view residual_mode, std::int64_t channel_dim, double eps, bool store_states,
                       std::int64_t bits, bool last_states) {
  const auto given = [](const MaybeTensor& t) { return t.value_or(at::Tensor()); };
  LayerCall call{op,          neuron,       inputs,     states,          params,        given(weight),
                 given(bias), given(mean),  given(var), given(residual), residual_mode, channel_dim,
                 eps,         store_states, bits,       last_states};
  check(call);
  if (call.channel_dim < 0) call.channel_dim += call.inputs[0].dim();
  return call;
}

at::Tensor beside(const at::Tensor& numbers, const at::Tensor& x, std::int64_t channel_dim) {
  c10::SymDimVector sizes(static_cast<std::size_t>(x.dim() - channel_dim), 1);
  sizes[0] = numbers.sym_size(0);
  return numbers.view_symint(sizes);
}

Scale scale_of(const at::Tensor& var, const at::Tensor& weight, double eps) {
  const at::Tensor rstd = at::rsqrt(var + eps);
  return {rstd, weight.defined() ? rstd * weight : rstd};
}

std::shared_ptr<const TracedCell> layer_cell(std::string_view neuron_text, std::optional<graph::Residual> residual,
                                             bool with_statistics) {
  const graph::Layer around{.normalised = true, .with_statistics = with_statistics, .residual = residual};
  const auto neuron = cell_of(neuron_text, batch_norm_op);
  using Texts = DerivedTexts<std::pair<bool, std::optional<graph::Residual>>>;
  auto& texts = neuron->layers.get<Texts>([] { return Texts(); });
  try {
    return cell_of(texts.get({with_statistics, around.residual},
                             [&] { return graph::on_a_line(graph::print(graph::layer(neuron->graph, around))); }),
                   batch_norm_op);
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, batch_norm_op, ": ", neuron->name, " with the layer around it: ", error.what());
  }
}

LayerArguments::LayerArguments(const LayerCall& call, const at::Tensor& center, const at::Tensor& scale,
                               const at::Tensor& shift)
    : inputs(call.inputs.begin(), call.inputs.end()), params(call.params.begin(), call.params.end()) {
  if (call.residual.defined()) inputs.push_back(call.residual);
  params.insert(params.end(), {center, scale, shift});
}

namespace {

Results composed(const LayerCall& call, const at::Tensor& mean, const at::Tensor& var) {
  const c10::ScalarType type = state_type(call.inputs[0].scalar_type());
  // `to` may return its argument, which an operator must not return below autograd.
  const auto [rstd, scale] = scale_of(var.scalar_type() == type ? var : var.to(type), call.weight, call.eps);
  at::Tensor center = mean, shift = call.bias.defined() ? call.bias : at::zeros_like(rstd);
  if (mean.requires_grad() || autograd::has_tangent(mean)) {
    // The derivative of the mean follows from that of the shift, which is computed in any case. This saves a sum over
    // all steps and neurons.
    center = mean.detach();
    shift = shift - (mean - center) * scale;
  }
  const auto beside_x = [&](const at::Tensor& t) { return beside(t, call.inputs[0], call.channel_dim); };
  const LayerArguments arguments(call, beside_x(center), beside_x(scale), beside_x(shift));
  const auto cell = layer_cell(call.neuron, call.joins());
  const MultistepResults results =
      call_run(traced_call(cell->text, arguments.inputs, call.states, arguments.params, call.store_states, call.bits));
  return {traced::list_of(results.outputs), call.last_states ? traced::list_of(results.states) : List(), mean, var};
}

}  // namespace

Results composed(const LayerCall& call) {
  if (call.has_statistics()) {
    Results results = composed(call, call.mean, call.var);
    std::get<2>(results) = call.mean.clone();  // results must not alias arguments
    std::get<3>(results) = call.var.clone();
    return results;
  }
  const auto [mean, var] = statistics_of_input(call.inputs[0], call.channel_dim);
  return composed(call, mean, var);
}

Results inference(const LayerCall& call) {
  if (call.has_statistics()) return composed(call);
  LayerResults results = call_layer_forward(call, /*save=*/false);
  return {traced::list_of(results.run.outputs), traced::list_of(results.run.states), results.mean, results.var};
}

}  // namespace spikeforge::ops::layers

namespace spikeforge {

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, at::Tensor, at::Tensor> batch_norm_run(
    const Neuron& neuron, at::TensorList inputs, at::TensorList states, at::TensorList params, const BatchNorm& norm,
    const std::optional<ResidualConnection>& residual, bool store_states, bool last_states) {
  static const auto handle = ops::find_operator<ops::layers::BatchNormRun>("spikeforge::batch_norm_run");
  const std::optional<at::Tensor> other = residual ? std::optional(residual->tensor) : std::nullopt;
  return handle.call(neuron.text(), inputs, states, params, norm.weight, norm.bias, norm.mean, norm.var, other,
                     residual ? residual->mode : "add", norm.channel_dim, norm.eps, store_states, /*bits=*/0,
                     last_states);
}

}  // namespace spikeforge
