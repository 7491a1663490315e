#include "ops/multistep/batched.h"
#include "ops/multistep/folding_level.h"

#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

std::int64_t step_rank(const MultistepCall& call) {
  return call.inputs.empty() || call.inputs[0].dim() == 0 ? 0 : call.inputs[0].dim() - 1;
}

void find_samples(FoldingLevel& level, const MultistepCall& call) {
  level.find(call.lengths);
  level.find(call.start);
}
void fold_samples(const FoldingLevel& level, MultistepCall& call) {
  call.lengths = level.folded_samples(call.lengths, in_step);
  call.start = level.folded_samples(call.start, in_sequence);
}

void check_not_mapped(const MultistepCall& call) {
  for (const at::Tensor* t : {&call.seed, &call.offset})
    TORCH_CHECK_NOT_IMPLEMENTED(
        !t->defined() || at::functorch::maybeGetBatchedImpl(*t) == nullptr, call.cell->forward_op,
        ": torch.vmap over seeds or offsets is not supported; give one seed for all maps, which "
        "draw different numbers by it");
}

template <class Run> MultistepResults batched(const MultistepCall& call, Run run) {
  check_not_mapped(call);
  FoldingLevel level;
  for (const at::TensorList list : {call.inputs, call.states, call.params}) level.find(list);
  find_samples(level, call);
  const Folded inputs = level.folded(call.inputs, in_sequence), states = level.folded(call.states, in_step);
  Folded params;
  for (const at::Tensor& param : call.params)
    params.push_back(level.folded_param(param, step_rank(call), /*always=*/false));
  MultistepCall folded = call;
  folded.inputs = inputs;
  folded.states = states;
  folded.params = params;
  folded.bits = 0;
  fold_samples(level, folded);
  MultistepResults results = run(folded);
  const bool has_checkpoints = results.checkpoints.defined() && results.checkpoints.dim() > in_checkpoints;
  return {level.all_mapped(std::move(results.outputs), in_sequence),
          level.all_mapped(std::move(results.states), call.store_states ? in_sequence : in_step),
          has_checkpoints ? level.mapped(results.checkpoints, in_checkpoints) : std::move(results.checkpoints),
          {}};
}

}  // namespace

MultistepResults run_batched(const MultistepCall& call, MultistepResults (*run)(const MultistepCall&)) {
  return batched(call, run);
}

MultistepResults forward_batched(const MultistepCall& call, bool save,
                                 MultistepResults (*run)(const MultistepCall&, bool)) {
  return batched(call, [&](const MultistepCall& folded) { return run(folded, save); });
}

Tensors backward_batched(const BackwardCall& call, Tensors (*run)(const BackwardCall&)) {
  check_not_mapped(call);
  FoldingLevel level;
  for (const at::TensorList list : {call.inputs, call.states, call.params, call.grad_outputs, call.grad_states})
    level.find(list);
  level.find(call.checkpoints);
  find_samples(level, call);
  const Folded inputs = level.folded(call.inputs, in_sequence), states = level.folded(call.states, in_step),
               grad_outputs = level.folded(call.grad_outputs, in_sequence),
               grad_states = level.folded(call.grad_states, call.store_states ? in_sequence : in_step);
  const std::size_t first_param = call.inputs.size() + call.cell->states.size();
  Folded params;
  for (std::size_t j = 0; j < call.params.size(); ++j)
    params.push_back(level.folded_param(call.params[j], step_rank(call), call.needs_grad[first_param + j]));
  BackwardCall folded = call;
  folded.inputs = inputs;
  folded.states = states;
  folded.params = params;
  folded.grad_outputs = grad_outputs;
  folded.grad_states = grad_states;
  fold_samples(level, folded);
  folded.checkpoints = level.folded(call.checkpoints, in_checkpoints);
  Tensors results = run(folded);
  auto* result = results.begin();
  for (std::size_t i = 0; i < call.needs_grad.size(); ++i) {
    if (!call.needs_grad[i]) continue;
    at::Tensor& grad = *result++;
    if (i >= first_param) grad = level.without_alignment(grad, call.params[i - first_param].dim());
    grad = level.mapped(grad, i < call.inputs.size() ? in_sequence : in_step);
  }
  return results;
}

void refuse_batched_gradients(const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op,
                              ": is_grads_batched=True is not supported; pass the gradients one by one, or map over "
                              "them: torch.vmap(lambda g: torch.autograd.grad(y, x, g))");
}

}  // namespace spikeforge::ops
