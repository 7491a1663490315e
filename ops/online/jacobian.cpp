// The derivatives of a neuron over some steps, by its own backward pass: one walk back for each state.
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/multistep/derivatives.h"
#include "ops/online/eligibility.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>

namespace spikeforge::ops::online {
namespace {

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

  // Every neuron of every sample has its own derivative by a parameter.
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
