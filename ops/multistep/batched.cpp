#include "ops/multistep/batched.h"
#include "ops/multistep/folding_level.h"

#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

void check_not_mapped(const MultistepCall& call) {
  for (const at::Tensor* t : {&call.seed, &call.offset})
    TORCH_CHECK_NOT_IMPLEMENTED(
        !t->defined() || at::functorch::maybeGetBatchedImpl(*t) == nullptr, call.cell->forward_op,
        ": torch.vmap over seeds or offsets is not supported; give one seed for all maps, which "
        "draw different numbers by it");
}

template <class Run> MultistepResults batched(const MultistepCall& call, Run run) {
  check_not_mapped(call);
  const FoldingLevel level(call);
  const CallTensors tensors = level.folded(call, [](std::size_t) { return false; });
  MultistepCall folded = call;
  tensors.set(folded);
  folded.bits = 0;
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
  FoldingLevel level(call);
  for (const at::TensorList list : {call.grad_outputs, call.grad_states}) level.find(list);
  level.find(call.checkpoints);
  const CallTensors tensors = level.folded(call, [&](std::size_t j) { return wants_grad_param(call, j); });
  const Folded grad_outputs = level.folded(call.grad_outputs, in_sequence),
               grad_states = level.folded(call.grad_states, call.store_states ? in_sequence : in_step);
  BackwardCall folded = call;
  tensors.set(folded);
  folded.grad_outputs = grad_outputs;
  folded.grad_states = grad_states;
  folded.checkpoints = level.folded(call.checkpoints, in_checkpoints);
  return level.mapped_gradients(call, run(folded));
}

void refuse_batched_gradients(const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op,
                              ": is_grads_batched=True is not supported; pass the gradients one by one, or map over "
                              "them: torch.vmap(lambda g: torch.autograd.grad(y, x, g))");
}

}  // namespace spikeforge::ops
