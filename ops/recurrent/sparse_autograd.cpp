#include "ops/common/library.h"
#include "ops/recurrent/once_differentiable.h"
#include "ops/recurrent/sparse.h"

#include <string>
#include <utility>

namespace spikeforge::ops::recurrent {
namespace {

using namespace autograd;

template <class Call, class Predicate> bool any_tensor_of(const Call& call, Predicate&& is) {
  return autograd::any_tensor(call, is) || is(call.connections.weights) || (call.spikes.defined() && is(call.spikes));
}

struct SparseRule {
  static constexpr bool is_traceable = true;

  static RecurrentResults recorded(const SparseCall& call) {
    const Connections& c = call.connections;
    variable_list given = given_tensors(call);
    given.push_back(c.weights);
    if (call.spikes.defined()) given.push_back(call.spikes);
    RecurrentResults results;
    record<SparseRule>(given, [&](AutogradContext* ctx) {
      results = call_forward(call, /*save=*/true);
      variable_list saved = given;
      saved[static_cast<std::size_t>(call.into)] = results.current;  // instead of the input
      saved.insert(saved.end(), {c.indices, c.indptr, c.delays, results.outputs[0], results.checkpoints});
      Kept::save(ctx, call, std::move(saved));
      ctx->saved_data["into"] = call.into;
      ctx->saved_data["max_delay"] = c.max_delay;
      ctx->saved_data["values"] = std::string(event::name_of(c.values));
      Tensors all = results.outputs;
      all.append(results.states.begin(), results.states.end());
      return all;
    });
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Kept kept(ctx);
    SparseBackwardCall call;
    static_cast<BackwardCall&>(call) = kept.call;
    call.into = ctx->saved_data.at("into").toInt();
    const variable_list& tensors = kept.tensors();
    const std::size_t weights_at = kept.count(), others = tensors.size() - 5;
    const bool has_spikes = others == weights_at + 2;
    if (has_spikes) call.spikes = tensors[weights_at + 1];
    call.connections = {tensors[weights_at],
                        tensors[others],
                        tensors[others + 1],
                        tensors[others + 2],
                        ctx->saved_data.at("max_delay").toInt(),
                        sparse::parse_values(ctx->saved_data.at("values").toStringRef())};
    call.output = tensors[others + 3];
    call.checkpoints = tensors[others + 4];
    call.needs_grad = kept.wanted();
    call.needs_grad[static_cast<std::size_t>(call.into)] = true;
    call.wants_weights = ctx->needs_input_grad(weights_at);
    call.wants_spikes = has_spikes && ctx->needs_input_grad(weights_at + 1);
    call.grad_outputs = at::TensorList(grads).slice(0, call.cell->outputs.size());
    call.grad_states = at::TensorList(grads).slice(call.cell->outputs.size(), call.cell->states.size());

    Tensors list = run_backward(call);
    const at::Tensor of_spikes = call.wants_spikes ? list.pop_back_val() : at::Tensor(),
                     of_weights = call.wants_weights ? list.pop_back_val() : at::Tensor();
    variable_list all = kept.placed(gradients_by_argument(call, std::move(list)));
    all.push_back(of_weights);
    if (has_spikes) all.push_back(of_spikes);
    return all;
  }

 private:
  // Skips the dispatch keys of autograd unless the backward pass is differentiated, like MultistepRule.
  static Tensors run_backward(const SparseBackwardCall& call) {
    if (at::GradMode::is_enabled() || any_tensor_of(call, has_tangent)) return call_backward(call);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_backward(call);
  }
};

RecurrentResults forward_autograd(const SparseCall& call, bool save) {
  refuse_tangents(sparse_op, any_tensor_of(call, has_tangent));
  if (any_tensor_of(call, wants_gradient)) return SparseRule::recorded(call);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_forward(call, save);
}

RecurrentResults run_autograd(const SparseCall& call) { return forward_autograd(call, /*save=*/false); }

Tensors backward_autograd(const SparseBackwardCall& call) {
  return backward_once("sparse_recurrent_run_backward", call, call.connections.weights,
                       "sparse_recurrent_run: second derivatives are not implemented");
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("sparse_recurrent_run", TORCH_FN(sparse_kernel<run_autograd>));
  library.impl("sparse_recurrent_run_forward", TORCH_FN(sparse_forward_kernel<forward_autograd>));
  library.impl("sparse_recurrent_run_backward", TORCH_FN(sparse_backward_kernel<backward_autograd>));
}

}  // namespace
}  // namespace spikeforge::ops::recurrent
