#include "ops/common/library.h"
#include "ops/common/rows_product.h"
#include "ops/recurrent/call.h"
#include "ops/recurrent/once_differentiable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace spikeforge::ops::recurrent {
namespace {

using namespace autograd;

template <class Predicate> bool any_tensor(const RecurrentCall& call, Predicate&& is) {
  return autograd::any_tensor(call, is) || is(call.w) || (call.spikes.defined() && is(call.spikes));
}

// The gradients of a call's matrix and spikes, from the gradient g of its currents.
struct Shifted {
  at::Tensor g;  // the gradient of the received values
  const at::Tensor &s, &spikes;
  std::int64_t delay;

  // `start` may be undefined if no sample restarts.
  Shifted(const at::Tensor& of_current, const at::Tensor& s, const at::Tensor& spikes, const at::Tensor& start,
          std::int64_t delay)
      : g(start.defined() ? of_current.masked_fill(is_unheard(start, delay), 0) : of_current),
        s(s),
        spikes(spikes),
        delay(delay) {}

  c10::SymInt steps() const { return g.sym_size(0); }
  // Returns the gradient g of the steps that receive `spikes`.
  at::Tensor first() const { return g.slice_symint(0, 0, delay); }

  // Returns the gradient of w, as one product over all pairs of steps at the distance of the delay.
  at::Tensor of_w() const {
    const auto product = [](const at::Tensor& fed_back, const at::Tensor& of_current) {
      auto fired = fired_product(fed_back, of_current);
      return fired.has_value() ? *std::move(fired) : rows_product(fed_back, of_current);
    };
    at::Tensor sum;
    if (steps() > delay) sum = product(s.slice_symint(0, 0, steps() - delay), g.slice_symint(0, delay));
    if (spikes.defined()) {
      const at::Tensor of_first = first();
      const at::Tensor more = product(spikes.slice_symint(0, 0, of_first.sym_size(0)), of_first);
      sum = sum.defined() ? sum + more : more;
    }
    return sum.defined() ? sum : at::zeros_symint({g.sym_size(-1), g.sym_size(-1)}, g.options());
  }

  at::Tensor of_spikes(const at::Tensor& w) const {
    at::Tensor found = at::matmul(first(), w.t());
    const c10::SymInt missing = c10::SymInt(delay) - found.sym_size(0);
    if (missing <= 0) return found;
    c10::SymDimVector pad(static_cast<std::size_t>(2 * found.dim()), 0);
    pad.back() = missing;
    return at::constant_pad_nd_symint(found, pad);
  }
};

struct RecurrentRule {
  static constexpr bool is_traceable = true;

  static RecurrentResults recorded(const RecurrentCall& call) {
    variable_list given = given_tensors(call);
    given.push_back(call.w);
    if (call.spikes.defined()) given.push_back(call.spikes);
    RecurrentResults results;
    record<RecurrentRule>(given, [&](AutogradContext* ctx) {
      results = call_forward(call, /*save=*/true);
      // Saves the current instead of x.
      variable_list saved = given;
      saved[static_cast<std::size_t>(call.into)] = results.current;
      saved.push_back(results.outputs[0]);
      saved.push_back(results.checkpoints);
      Kept::save(ctx, call, std::move(saved));
      ctx->saved_data["into"] = call.into;
      ctx->saved_data["delay"] = call.delay;
      Tensors all = results.outputs;
      all.append(results.states.begin(), results.states.end());
      return all;
    });
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Kept kept(ctx);
    RecurrentBackwardCall call;
    static_cast<BackwardCall&>(call) = kept.call;
    call.into = ctx->saved_data.at("into").toInt();
    call.delay = ctx->saved_data.at("delay").toInt();
    const auto into = static_cast<std::size_t>(call.into);
    const variable_list& tensors = kept.tensors();
    const std::size_t w_at = kept.count();
    const bool has_spikes = tensors.size() == w_at + 4;
    call.w = tensors[w_at];
    const at::Tensor spikes = has_spikes ? tensors[w_at + 1] : at::Tensor();
    call.checkpoints = tensors.back();
    call.needs_grad = kept.wanted();
    call.needs_grad[into] = true;
    call.grad_outputs = at::TensorList(grads).slice(0, call.cell->outputs.size());
    call.grad_states = at::TensorList(grads).slice(call.cell->outputs.size(), call.cell->states.size());

    ByArgument found = gradients_by_argument(call, run_backward(call));
    const Shifted shifted(found[into], tensors[tensors.size() - 2], spikes, call.start, call.delay);
    const at::Tensor of_w = ctx->needs_input_grad(w_at) ? shifted.of_w() : at::Tensor();
    const at::Tensor of_spikes =
        has_spikes && ctx->needs_input_grad(w_at + 1) ? shifted.of_spikes(call.w) : at::Tensor();
    variable_list all = kept.placed(found);
    all.push_back(of_w);
    if (has_spikes) all.push_back(of_spikes);
    return all;
  }

 private:
  // Skips the dispatch keys of autograd unless the backward pass is differentiated, like MultistepRule.
  static Tensors run_backward(const RecurrentBackwardCall& call) {
    if (at::GradMode::is_enabled() || any_dual(call) || has_tangent(call.w)) return call_backward(call);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_backward(call);
  }
};

RecurrentResults forward_autograd(const RecurrentCall& call, bool save) {
  if (any_tensor(call, has_tangent)) {
    TORCH_CHECK_NOT_IMPLEMENTED(!save, "recurrent_run_forward: dual tensors are supported only by recurrent_run");
    return forward_stepped(call, save);
  }
  if (any_tensor(call, wants_gradient)) return RecurrentRule::recorded(call);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_forward(call, save);
}

RecurrentResults run_autograd(const RecurrentCall& call) { return forward_autograd(call, /*save=*/false); }

Tensors backward_autograd(const RecurrentBackwardCall& call) {
  return backward_once(
      "recurrent_run_backward", call, call.w,
      "recurrent_run: second derivatives are not implemented; step the neuron with spikeforge::run and "
      "torch.matmul to compute them");
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("recurrent_run", TORCH_FN(run_kernel<run_autograd>));
  library.impl("recurrent_run_forward", TORCH_FN(forward_kernel<forward_autograd>));
  library.impl("recurrent_run_backward", TORCH_FN(backward_kernel<backward_autograd>));
}

}  // namespace
}  // namespace spikeforge::ops::recurrent
