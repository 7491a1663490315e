#include "ops/common/library.h"
#include "ops/layer/batch_norm.h"
#include "ops/multistep/autograd.h"

#include <ATen/TensorOperators.h>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace spikeforge::ops::layers {
namespace {

using namespace autograd;

// A layer with the statistics of its x, as one node. It saves x, the other arguments of the neuron, and a few values
// per channel.
struct BatchNormRule {
  static constexpr bool is_traceable = true;

  static Results recorded(const LayerCall& layer) {
    LayerResults results;
    {
      // The values per channel are internal to the node: their gradients contribute to weight, bias and x.
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      results = is_wrapped(layer) ? forward_of_parts(layer, /*save=*/true) : call_layer_forward(layer, /*save=*/true);
    }
    const Numbers& numbers = results.numbers;
    // The gradient of a sum does not depend on the residual, which is therefore not saved.
    const bool adds = adds_residual(layer);
    LayerCall kept = layer;
    if (adds) kept.residual.reset();
    const std::shared_ptr<const TracedCell> cell = layer_cell(kept.neuron, kept.joins());
    const LayerArguments arguments(kept, numbers.center, numbers.scale, numbers.shift);
    const MultistepCall call =
        traced_call(cell->text, arguments.inputs, layer.states, arguments.params, layer.store_states);
    variable_list given = given_tensors(call);
    for (const at::Tensor* t : {&layer.weight, &layer.bias})
      if (t->defined()) given.push_back(*t);
    const std::size_t count = given.size();
    if (adds) given.push_back(layer.residual);

    using Node = PackedResultNode<BatchNormRule>;
    record<BatchNormRule, Node>(given, [&](Node& node) {
      AutogradContext* const ctx = &node.ctx_;
      variable_list saved(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(count));
      saved.insert(saved.end(), {numbers.rstd, results.run.checkpoints});
      Kept::save(ctx, call, std::move(saved));
      keep_bits(node, layer.bits, results.run);
      ctx->saved_data["has_weight"] = layer.weight.defined();
      ctx->saved_data["has_bias"] = layer.bias.defined();
      ctx->saved_data["channel_dim"] = layer.channel_dim;
      ctx->saved_data["eps"] = layer.eps;
      ctx->saved_data["layer_of"] = std::string(layer.neuron);
      ctx->saved_data["adds"] = adds;
      if (const auto residual = kept.joins()) ctx->saved_data["residual"] = static_cast<std::int64_t>(*residual);
      variable_list all(results.run.outputs.begin(), results.run.outputs.end());
      all.insert(all.end(), results.run.states.begin(), results.run.states.end());
      all.insert(all.end(), {results.mean, results.var});
      return all;
    });
    return {traced::list_of(results.run.outputs), traced::list_of(results.run.states), results.mean, results.var};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    Kept kept(ctx);
    const std::size_t outputs = kept.call.cell->outputs.size(), states = grads.size() - outputs - 2;
    const Tensors of_no_states(kept.call.cell->states.size());
    const std::string neuron = ctx->saved_data.at("layer_of").toStringRef();
    const auto residual = ctx->saved_data.find("residual");
    LayerBackward layer{.run = kept.call,
                        .neuron = neuron,
                        .residual = residual == ctx->saved_data.end()
                                        ? std::nullopt
                                        : std::optional(static_cast<graph::Residual>(residual->second.toInt())),
                        .rstd = {},
                        .grad_mean = grads[outputs + states],
                        .grad_var = grads[outputs + states + 1],
                        .channel_dim = ctx->saved_data.at("channel_dim").toInt()};
    variable_list of_outputs(grads.begin(), grads.begin() + static_cast<std::ptrdiff_t>(outputs));
    layer.run.grad_outputs = of_outputs;
    layer.run.grad_states = states == 0 ? at::TensorList(of_no_states) : at::TensorList(grads).slice(outputs, states);
    layer.run.checkpoints = kept.tensors().back();
    layer.run.needs_grad = kept.wanted();
    const Affine affine(ctx, kept);
    layer.rstd = affine.rstd;
    layer.run.needs_grad[layer.scale_at()] = affine.wants_weight;
    layer.run.needs_grad[layer.shift_at()] = affine.wants_bias;

    ByArgument arguments = tensors_of(layer.run);
    ByArgument found;
    if (is_differentiated(grads) || any_dual(layer.run)) {
      // The values per channel are recomputed, because their derivatives are needed too.
      const at::Tensor& x = arguments[0];
      const auto beside_x = [&](const at::Tensor& t) { return beside(t, x, layer.channel_dim); };
      const auto [mean, var] = statistics_of_input(x, layer.channel_dim);
      const Scale factors = scale_of(var, affine.weight, ctx->saved_data.at("eps").toDouble());
      layer.rstd = beside_x(factors.rstd);
      arguments[layer.mean_at()] = beside_x(mean);
      arguments[layer.scale_at()] = beside_x(factors.scale);
      if (affine.bias.defined()) arguments[layer.shift_at()] = beside_x(affine.bias);
      set_tensors(layer.run, arguments);
      found = backward_of_parts(layer, /*is_differentiated=*/true);
    } else {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      // On a GPU, each pass of this layer, and of the layer of the residual, would copy a gradient that has another
      // memory order. It is copied once here.
      for (at::Tensor& grad : of_outputs)
        if (grad.defined() && next_key_of(arguments[0].key_set() | grad.key_set()) == c10::DispatchKey::CUDA)
          grad = in_order_of(arguments[0], grad);
      found = is_wrapped(layer) ? backward_of_parts(layer, /*is_differentiated=*/false) : call_layer_backward(layer);
    }

    const at::Tensor of_weight = std::exchange(found[layer.scale_at()], {}),
                     of_bias = std::exchange(found[layer.shift_at()], {});
    variable_list all = kept.placed(found);
    const auto add = [&](const at::Tensor& of, const at::Tensor& gradient) {
      if (of.defined()) all.push_back(gradient.defined() ? gradient.to(of.scalar_type()) : gradient);
    };
    add(affine.weight, of_weight);
    add(affine.bias, of_bias);
    if (ctx->saved_data.at("adds").toBool()) all.push_back(of_outputs[0]);
    return all;
  }

 private:
  // The saved values other than the call.
  struct Affine {
    Affine(AutogradContext* ctx, const Kept& kept) {
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

    at::Tensor weight, bias, rstd;
    bool wants_weight = false, wants_bias = false;
  };

  // True if the cell without the residual can use the checkpoints too.
  static bool adds_residual(const LayerCall& layer) {
    if (layer.joins() != graph::Residual::add) return false;
    const DType type = dtype_of(layer.inputs[0].scalar_type());
    return layer_cell(layer.neuron, std::nullopt)->checkpoint_length(type) ==
           layer_cell(layer.neuron, layer.joins())->checkpoint_length(type);
  }

  // True under a transform of torch.func, which requires the composed operators.
  static bool is_wrapped(at::TensorList list) {
    return std::any_of(list.begin(), list.end(),
                       [](const at::Tensor& t) { return t.defined() && traced::is_wrapped(t); });
  }
  static bool is_wrapped(const MultistepCall& call) {
    return is_wrapped(call.inputs) || is_wrapped(call.states) || is_wrapped(call.params);
  }
  static bool is_wrapped(const LayerCall& layer) {
    return is_wrapped(layer.inputs) || is_wrapped(layer.states) || is_wrapped(layer.params) || is_wrapped(layer.own());
  }
  static bool is_wrapped(const LayerBackward& layer) {
    return is_wrapped(layer.run) || is_wrapped(layer.run.grad_outputs) || is_wrapped(layer.run.grad_states) ||
           is_wrapped({layer.grad_mean, layer.grad_var});
  }
};

Results batch_norm_run_autograd(const LayerCall& call) {
  const auto own = call.own();
  const auto is_wanted = [](at::TensorList list) { return std::any_of(list.begin(), list.end(), wants_gradient); };
  const bool any_tangent = any_dual(call.inputs) || any_dual(call.states) || any_dual(call.params) || any_dual(own);
  if (any_tangent || call.has_statistics()) return composed(call);
  if (wants_gradient(call.inputs[0])) return BatchNormRule::recorded(call);
  if (is_wanted(call.inputs) || is_wanted(call.states) || is_wanted(call.params) || is_wanted(own))
    return composed(call);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return traced::is_wrapped(call.inputs[0]) ? composed(call) : inference(call);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("batch_norm_run", TORCH_FN(kernel<batch_norm_run_autograd>));
  library.impl("batch_norm_run_tracked", TORCH_FN(tracked_kernel<batch_norm_run_autograd>));
  for (const char* lowered : {"batch_norm_run_forward", "batch_norm_run_backward"})
    library.impl(lowered, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops::layers
