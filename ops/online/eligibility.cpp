// The contribution of steps before a call to its gradients, and the update of traces.
#include "ops/online/eligibility.h"
#include "csrc/autodiff/jvp.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/traced_cell.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/common/record.h"
#include "ops/multistep/derivatives.h"
#include "ops/multistep/derived_texts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <utility>

namespace spikeforge::ops::online {
namespace {

using autograd::AutogradContext;
using autograd::variable_list;

// Reshapes [*first, *batch, last] to [*first, B, last].
at::Tensor with_one_batch(const at::Tensor& t, std::int64_t first, std::int64_t last) {
  const std::int64_t batches = t.dim() - first - last;
  if (batches == 1) return t;
  return batches == 0 ? t.unsqueeze(first) : t.flatten(first, first + batches - 1);
}

// ---- with_eligibility ----

at::Tensor leaf_gradient(const at::Tensor& grad, const at::Tensor& trace, bool outer, c10::SymIntArrayRef leaf) {
  static const auto handle = find_operator<EligibilityGradient>("spikeforge::eligibility_gradient");
  if (outer) return at::mm(with_one_batch(grad, 0, 1).t(), with_one_batch(trace, 0, 1));
  if (trace.dim() == grad.dim()) return at::mul(grad, trace).sum_to_size_symint(leaf);
  // The operator has no derivative, so torch's operators are used if the gradient is differentiated.
  return at::GradMode::is_enabled() ? gradient_by_torch(grad, trace) : handle.call(grad, trace);
}

struct EligibilityRule {
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor& grad = grads[0];
    at::Tensor of_leaf;
    if (ctx->needs_input_grad(1) && grad.defined()) {
      const variable_list saved = ctx->get_saved_variables();
      of_leaf = leaf_gradient(grad, saved[0], ctx->saved_data.at("outer").toBool(),
                              ctx->saved_data.at("size").toSymIntVector());
    }
    return {grad, of_leaf};
  }
};

void check_eligibility(const at::Tensor& state, const at::Tensor& leaf, const at::Tensor& trace, bool outer) {
  constexpr const char* op = "with_eligibility";
  const bool of_synapses = outer || trace.dim() == state.dim() + 1;
  const auto refuse = [&](bool legal) {
    TORCH_CHECK_VALUE(legal, op, ": a trace of shape ", trace.sym_sizes(), outer ? " of inputs" : "",
                      " fits no state of shape ", state.sym_sizes(), " and leaf of shape ", leaf.sym_sizes());
  };
  check_same_type({op, "the state", state}, "trace", trace);
  refuse(state.dim() >= 1 && trace.dim() == state.dim() + (of_synapses && !outer ? 1 : 0));
  const std::int64_t batches = state.dim() - 1;
  refuse(trace.sym_sizes().slice(0, batches) == state.sym_sizes().slice(0, batches));
  if (of_synapses) {
    refuse(leaf.dim() == 2 && leaf.sym_size(0) == state.sym_size(-1) && leaf.sym_size(1) == trace.sym_size(-1));
    refuse(outer || trace.sym_size(-2) == state.sym_size(-1));
  } else {
    refuse(trace.sym_size(-1) == state.sym_size(-1) || trace.sym_size(-1) == 1);
    refuse(leaf.dim() <= state.dim());
    for (std::int64_t d = 1; d <= leaf.dim(); ++d)
      refuse(leaf.sym_size(-d) == state.sym_size(-d) || leaf.sym_size(-d) == 1);
  }
}

at::Tensor with_eligibility(const at::Tensor& state, const at::Tensor& leaf, const at::Tensor& trace, bool outer) {
  check_eligibility(state, leaf, trace, outer);
  return state.clone();
}

at::Tensor with_eligibility_autograd(const at::Tensor& state, const at::Tensor& leaf, const at::Tensor& trace,
                                     bool outer) {
  static const auto handle = find_operator<WithEligibility>("spikeforge::with_eligibility");
  return autograd::differentiable<EligibilityRule>(
      "with_eligibility", {state, leaf}, [&] { return handle.call(state, leaf, trace, outer); },
      [&](AutogradContext* ctx) {
        ctx->save_for_backward({trace});
        ctx->saved_data["outer"] = outer;
        ctx->saved_data["size"] = leaf.sym_sizes().vec();
      });
}

}  // namespace

void check_gradient(const at::Tensor& grad, const at::Tensor& trace) {
  constexpr const char* op = "eligibility_gradient";
  TORCH_CHECK_TYPE(is_supported(grad.scalar_type()), op, ": grad must be of a floating type, but is ",
                   grad.scalar_type());
  TORCH_CHECK_VALUE(grad.dim() >= 1, op, ": grad must have shape [*batch, N], but has no dimension");
  TORCH_CHECK_VALUE(trace.dim() == grad.dim() + 1 &&
                        trace.sym_sizes().slice(0, static_cast<std::size_t>(grad.dim())) == grad.sym_sizes(),
                    op, ": trace must have shape [*batch, N, I], for grad of shape ", grad.sym_sizes(), ", but has ",
                    trace.sym_sizes());
  const Leader leader{op, "grad", grad};
  check_same_type(leader, "trace", trace);
  check_device(leader, "trace", trace);
}

at::Tensor gradient_by_torch(const at::Tensor& grad, const at::Tensor& trace) {
  const at::Tensor g = with_one_batch(grad, 0, 1), e = with_one_batch(trace, 0, 2);
  return at::bmm(g.t().unsqueeze(1), e.transpose(0, 1)).squeeze(1);
}

namespace {

at::Tensor eligibility_gradient(const at::Tensor& grad, const at::Tensor& trace) {
  check_gradient(grad, trace);
  return gradient_by_torch(grad, trace);
}

}  // namespace

// ---- advance_eligibility ----

void check_advance(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                   const std::optional<at::Tensor>& x) {
  constexpr const char* op = "advance_eligibility";
  const std::size_t states = drives.size();
  TORCH_CHECK_VALUE(transitions.size() == states * states, op, ": transitions must have ", states * states,
                    " tensors, which is one for each pair of states, but has ", transitions.size());
  TORCH_CHECK_VALUE(traces.empty() || traces.size() == states, op, ": traces must have ", states,
                    " tensors, one for each state, or none, but has ", traces.size());
  if (states == 0) return;
  const at::Tensor& like = transitions[0];
  const bool of_synapses = x.has_value() && x->defined();
  const auto check_list = [&](const char* name, at::TensorList list, c10::SymIntArrayRef shape) {
    for (std::size_t i = 0; i < list.size(); ++i)
      TORCH_CHECK_VALUE(list[i].sym_sizes() == shape && list[i].device() == like.device(), op, ": ", name,
                        " must have shape ", shape, " on ", like.device(), ", but number ", i, " has ",
                        list[i].sym_sizes(), " on ", list[i].device());
  };
  TORCH_CHECK_TYPE(like.scalar_type() == at::kFloat || like.scalar_type() == at::kDouble, op,
                   ": transitions must be float32 or float64, but are ", like.scalar_type());
  for (const auto& [name, list] : {std::pair{"transitions", transitions}, {"traces", traces}})
    for (const at::Tensor& t : list)
      TORCH_CHECK_TYPE(t.scalar_type() == like.scalar_type(), op, ": ", name, " must all be ", like.scalar_type(),
                       ", but one is ", t.scalar_type());
  for (const at::Tensor& t : drives)
    TORCH_CHECK_TYPE(is_supported(t.scalar_type()), op, ": drives must be of a floating type, but one is ",
                     t.scalar_type());
  check_list("transitions", transitions, like.sym_sizes());
  c10::SymDimVector trace(like.sym_sizes()), drive(like.sym_sizes());
  if (of_synapses) {
    TORCH_CHECK_VALUE(like.dim() >= 1 && x->dim() == like.dim() + 1 && x->device() == like.device() &&
                          x->sym_sizes().slice(1, like.dim() - 1) == like.sym_sizes().slice(0, like.dim() - 1),
                      op, ": x must have shape [T, *batch, I] on ", like.device(), ", to match transitions of shape ",
                      like.sym_sizes(), ", but has ", x->sym_sizes(), " on ", x->device());
    TORCH_CHECK_TYPE(is_supported(x->scalar_type()), op, ": x must be of a floating type, but is ", x->scalar_type());
    trace.push_back(x->sym_size(-1));
    drive.insert(drive.begin(), x->sym_size(0));
  }
  check_list("drives", drives, drive);
  check_list("traces", traces, trace);
}

List advance_by_torch(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                      const std::optional<at::Tensor>& x) {
  // Traces have the type of states, even under autocast.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const bool of_synapses = x.has_value() && x->defined();
  List next;
  for (std::size_t k = 0; k < drives.size(); ++k) {
    const auto type = transitions[k].scalar_type();
    at::Tensor driven = drives[k].to(type);
    if (of_synapses) {
      c10::SymDimVector shape(transitions[k].sym_sizes());
      shape.push_back(x->sym_size(-1));
      const at::Tensor z = with_one_batch(*x, 1, 1).to(type);
      driven = at::bmm(with_one_batch(driven, 1, 1).permute({1, 2, 0}), z.transpose(0, 1)).view_symint(shape);
    } else if (traces.empty()) {
      driven = driven.clone();
    }
    for (std::size_t l = 0; l < traces.size(); ++l) {
      const at::Tensor& transition = transitions[k * drives.size() + l];
      driven = driven.addcmul(of_synapses ? transition.unsqueeze(-1) : transition, traces[l]);
    }
    next.push_back(std::move(driven));
  }
  return next;
}

namespace {

List advance_eligibility(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                         const std::optional<at::Tensor>& x) {
  check_advance(traces, transitions, drives, x);
  return advance_by_torch(traces, transitions, drives, x);
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("with_eligibility", TORCH_FN(with_eligibility));
  library.impl("eligibility_gradient", TORCH_FN(eligibility_gradient));
  library.impl("advance_eligibility", TORCH_FN(advance_eligibility));
}

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl("eligibility_gradient", TORCH_FN(eligibility_gradient));
  library.impl("advance_eligibility", TORCH_FN(advance_eligibility));
}
SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("with_eligibility", TORCH_FN(with_eligibility_autograd));
  library.impl("eligibility_gradient", torch::autograd::autogradNotImplementedFallback());
  library.impl("advance_eligibility", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::string response_text(std::string_view neuron, std::int64_t into) {
  constexpr const char* op = "trace_of_input";
  const std::shared_ptr<const TracedCell> cell = cell_of(neuron, op);
  refuse_draws(*cell, op);
  TORCH_CHECK_VALUE(into >= 0 && into < static_cast<std::int64_t>(cell->inputs.size()), op,
                    ": into must be the index of one of ", cell->inputs.size(), " inputs, but is ", into);
  static DerivedTexts<std::pair<std::string, std::int64_t>> texts;
  try {
    return texts.get({cell->text, into}, [&] {
      return graph::on_a_line(graph::print(autodiff::response(cell->graph, static_cast<std::size_t>(into))));
    });
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, op, ": ", error.what());
  }
}

namespace {

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl("trace_of_input", TORCH_FN(response_text)); }
// The kernel of a call without tensors.
SPIKEFORGE_KERNELS(Undefined, library) { library.impl("trace_of_input", TORCH_FN(response_text)); }

// ---- local_jacobian ----
//
// The derivatives of a neuron over some steps, from its backward pass, which runs once for each state.

constexpr const char* jacobian_op = "local_jacobian";

std::tuple<List, List, List> local_jacobian(std::string_view neuron, at::TensorList inputs, at::TensorList states,
                                            at::TensorList params, std::int64_t into, at::IntArrayRef of_params) {
  BackwardCall call;
  static_cast<MultistepCall&>(call) = traced_call(neuron, inputs, states, params, /*store_states=*/false);
  const Cell& cell = *call.cell;
  refuse_draws(cell, jacobian_op);
  TORCH_CHECK_VALUE(into >= 0 && into < static_cast<std::int64_t>(inputs.size()), jacobian_op,
                    ": into must be the index of one of ", inputs.size(), " inputs, but is ", into);
  TORCH_CHECK_VALUE(!states.empty() || cell.states.empty(), jacobian_op, ": states must be given");

  // Parameters are expanded, so that every neuron of every sample has a separate derivative.
  Tensors own(params.begin(), params.end());
  const c10::SymIntArrayRef shape = inputs[0].sym_sizes().slice(1);
  for (const std::int64_t j : of_params) {
    TORCH_CHECK_VALUE(j >= 0 && j < static_cast<std::int64_t>(params.size()), jacobian_op,
                      ": of_params must be indices of ", params.size(), " parameters, but has ", j);
    at::Tensor& param = own[static_cast<std::size_t>(j)];
    bool fits = param.dim() <= static_cast<std::int64_t>(shape.size());
    for (std::int64_t d = 1; fits && d <= param.dim(); ++d)
      fits = param.sym_size(-d) == shape[shape.size() - static_cast<std::size_t>(d)] || param.sym_size(-d) == 1;
    TORCH_CHECK_VALUE(fits, jacobian_op, ": ", cell.params[static_cast<std::size_t>(j)].name, " has shape ",
                      param.sym_sizes(), ", which does not broadcast against ", shape, ", the shape of a step");
    param = param.to(inputs[0].device()).expand_symint(shape).contiguous();
  }
  call.params = own;

  call.needs_grad.append(inputs.size() + states.size() + params.size(), false);
  call.needs_grad[static_cast<std::size_t>(into)] = true;
  for (std::size_t s = 0; s < states.size(); ++s) call.needs_grad[inputs.size() + s] = true;
  for (const std::int64_t j : of_params)
    call.needs_grad[inputs.size() + states.size() + static_cast<std::size_t>(j)] = true;

  const MultistepResults results = call_run_forward(call, /*save=*/true);
  call.checkpoints = results.checkpoints;
  const Tensors no_outputs(cell.outputs.size());
  call.grad_outputs = no_outputs;

  List transitions, drives;
  std::vector<List> param_drives(of_params.size());
  for (std::size_t k = 0; k < states.size(); ++k) {
    Tensors grad_states(states.size());
    grad_states[k] = at::ones_like(results.states[k]);
    call.grad_states = grad_states;
    const ByArgument grads = gradients_by_argument(call, call_run_backward(call));
    drives.push_back(grads[static_cast<std::size_t>(into)]);
    for (std::size_t s = 0; s < states.size(); ++s) transitions.push_back(grads[inputs.size() + s]);
    for (std::size_t i = 0; i < of_params.size(); ++i)
      param_drives[i].push_back(grads[inputs.size() + states.size() + static_cast<std::size_t>(of_params[i])]);
  }
  List listed;
  for (List& of_param : param_drives) listed.insert(listed.end(), of_param.begin(), of_param.end());
  return {std::move(transitions), std::move(drives), std::move(listed)};
}

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { library.impl(jacobian_op, TORCH_FN(local_jacobian)); }
SPIKEFORGE_KERNELS(FuncTorchBatched, library) { library.impl(jacobian_op, TORCH_FN(local_jacobian)); }
SPIKEFORGE_KERNELS(Autograd, library) { library.impl(jacobian_op, torch::autograd::autogradNotImplementedFallback()); }

}  // namespace
}  // namespace spikeforge::ops::online
