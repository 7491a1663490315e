#include <spikeforge/ops/common/batched.h>
#include <spikeforge/ops/common/vmap_level.h>

#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

constexpr std::int64_t in_step = 0, in_sequence = 1, in_checkpoints = 2;  // where the step's shape begins

using Folded = c10::SmallVector<at::Tensor, 10>;

class Level : public VmapLevel {
 public:
  void find(at::TensorList list) {
    for (const at::Tensor& t : list)
      if (t.defined()) VmapLevel::find(t);
  }

  // With the mapped dimension at `place`, also where it is the same for all of it.
  at::Tensor folded(const at::Tensor& t, std::int64_t place) const {
    if (!t.defined()) return t;
    if (const auto* const batched = of(t)) return batched->value().movedim(batched->bdim(), place);
    c10::SymDimVector sizes(t.sym_sizes().begin(), t.sym_sizes().end());
    sizes.insert(sizes.begin() + place, size());
    return t.unsqueeze(place).expand_symint(sizes);
  }
  Folded folded(at::TensorList list, std::int64_t place) const {
    Folded result;
    for (const at::Tensor& t : list) result.push_back(folded(t, place));
    return result;
  }

  // A parameter aligns with the last dimensions of a step of `rank` dimensions. One that is not mapped broadcasts as it
  // is, unless each map is to have its own gradient.
  at::Tensor folded_param(const at::Tensor& t, std::int64_t rank, bool always) const {
    if (!t.defined() || (!maps(t) && !always)) return t;
    at::Tensor param = folded(t, 0);
    while (param.dim() < 1 + rank) param = param.unsqueeze(1);
    return param;
  }

  Tensors all_mapped(Tensors results, std::int64_t place) const {
    for (at::Tensor& t : results) t = mapped(t, place);
    return results;
  }
};

std::int64_t step_rank(const MultistepCall& call) {
  return call.inputs.empty() || call.inputs[0].dim() == 0 ? 0 : call.inputs[0].dim() - 1;
}

template <class Run>
MultistepResults batched(const MultistepCall& call, Run run) {
  Level level;
  for (const at::TensorList list : {call.inputs, call.states, call.params}) level.find(list);
  const Folded inputs = level.folded(call.inputs, in_sequence), states = level.folded(call.states, in_step);
  Folded params;
  for (const at::Tensor& param : call.params)
    params.push_back(level.folded_param(param, step_rank(call), /*always=*/false));
  MultistepCall folded = call;
  folded.inputs = inputs;
  folded.states = states;
  folded.params = params;
  MultistepResults results = run(folded);
  const bool has_checkpoints = results.checkpoints.defined() && results.checkpoints.dim() > in_checkpoints;
  return {level.all_mapped(std::move(results.outputs), in_sequence),
          level.all_mapped(std::move(results.states), call.store_states ? in_sequence : in_step),
          has_checkpoints ? level.mapped(results.checkpoints, in_checkpoints) : std::move(results.checkpoints)};
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
  Level level;
  for (const at::TensorList list : {call.inputs, call.states, call.params, call.grad_outputs, call.grad_states})
    level.find(list);
  level.find(call.checkpoints);
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
  folded.checkpoints = level.folded(call.checkpoints, in_checkpoints);
  Tensors results = run(folded);
  auto* result = results.begin();
  for (std::size_t i = 0; i < call.needs_grad.size(); ++i) {
    if (!call.needs_grad[i]) continue;
    at::Tensor& grad = *result++;
    if (i >= first_param) {
      // Without the dimensions that aligned it.
      const std::int64_t own = call.params[i - first_param].dim();
      while (grad.dim() > 1 + own) grad = grad.squeeze(1);
    }
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
