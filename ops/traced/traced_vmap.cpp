// torch.vmap: the mapped dimension becomes the first one of the step's shape, which a neuron's equations do not know.
#include <spikeforge/ops/neuron/vmap_level.h>
#include <spikeforge/ops/traced/arguments.h>

#include <torch/library.h>

namespace spikeforge::ops {
namespace {

class Level : public VmapLevel {
 public:
  void find(at::TensorList list) {
    for (const at::Tensor& t : list) VmapLevel::find(t);
  }
  void find(const OptionalTensorList& list) {
    for (const std::optional<at::Tensor> t : list)
      if (t.has_value() && t->defined()) VmapLevel::find(*t);
  }

  // With the mapped dimension at `place`, also where it is the same for all of it.
  at::Tensor folded(const at::Tensor& t, std::int64_t place) const {
    if (const auto* const batched = of(t)) return batched->value().movedim(batched->bdim(), place);
    c10::SymDimVector sizes(t.sym_sizes().begin(), t.sym_sizes().end());
    sizes.insert(sizes.begin() + place, size());
    return t.unsqueeze(place).expand_symint(sizes);
  }
  Tensors folded(at::TensorList list, std::int64_t place) const {
    Tensors result;
    for (const at::Tensor& t : list) result.push_back(folded(t, place));
    return result;
  }
  OptionalTensorList folded(const OptionalTensorList& list, std::int64_t place) const {
    OptionalTensorList result;
    for (const std::optional<at::Tensor> t : list)
      result.push_back(t.has_value() && t->defined() ? std::optional<at::Tensor>(folded(*t, place)) : std::nullopt);
    return result;
  }

  // A parameter aligns with the last dimensions of a step of `rank` dimensions. One that is not mapped broadcasts as it
  // is, unless each map is to have its own gradient.
  at::Tensor folded_param(const at::Tensor& t, std::int64_t rank, bool always) const {
    if (!maps(t) && !always) return t;
    at::Tensor param = folded(t, 0);
    while (param.dim() < 1 + rank) param = param.unsqueeze(1);
    return param;
  }

  using VmapLevel::mapped;
  Tensors mapped(Tensors results, std::int64_t place) const {
    for (at::Tensor& t : results) t = mapped(t, place);
    return results;
  }
};

constexpr std::int64_t in_step = 0, in_sequence = 1, in_checkpoints = 2;  // where the step's shape begins

std::int64_t step_rank(at::TensorList inputs) {
  return inputs.empty() || inputs[0].dim() == 0 ? 0 : inputs[0].dim() - 1;
}

traced::Outputs run_batched(std::string_view neuron, at::TensorList inputs, at::TensorList states,
                            at::TensorList params, bool store_states) {
  static const auto op = traced::find<traced::Run>("spikeforge::run");
  const std::int64_t rank = step_rank(inputs);
  Level level;
  for (const at::TensorList list : {inputs, states, params}) level.find(list);
  Tensors folded_params;
  for (const at::Tensor& param : params) folded_params.push_back(level.folded_param(param, rank, /*always=*/false));
  auto [outputs, last] =
      op.call(neuron, level.folded(inputs, in_sequence), level.folded(states, in_step), folded_params, store_states);
  return {level.mapped(std::move(outputs), in_sequence),
          level.mapped(std::move(last), store_states ? in_sequence : in_step)};
}

Tensors run_backward_batched(std::string_view neuron, const OptionalTensorList& grad_outputs,
                             const OptionalTensorList& grad_states, at::TensorList inputs, at::TensorList states,
                             at::TensorList params, at::TensorList checkpoints, c10::List<bool> needs_grad,
                             bool store_states) {
  static const auto op = traced::find<traced::Backward>("spikeforge::run_backward");
  const std::int64_t rank = step_rank(inputs);
  const std::size_t first_param = inputs.size() + states.size();
  const auto needs = [&](std::size_t i) { return i < needs_grad.size() && needs_grad.get(i); };
  Level level;
  for (const at::TensorList list : {inputs, states, params, checkpoints}) level.find(list);
  level.find(grad_outputs);
  level.find(grad_states);
  Tensors folded_params;
  for (std::size_t j = 0; j < params.size(); ++j)
    folded_params.push_back(level.folded_param(params[j], rank, needs(first_param + j)));
  Tensors results = op.call(neuron, level.folded(grad_outputs, in_sequence),
                            level.folded(grad_states, store_states ? in_sequence : in_step),
                            level.folded(inputs, in_sequence), level.folded(states, in_step), folded_params,
                            level.folded(checkpoints, in_checkpoints), needs_grad, store_states);
  auto result = results.begin();
  for (std::size_t i = 0; i < needs_grad.size(); ++i) {
    if (!needs_grad.get(i)) continue;
    at::Tensor& grad = *result++;
    if (i >= first_param) {
      // Without the dimensions that aligned it.
      const std::int64_t own = params[i - first_param].dim();
      while (grad.dim() > 1 + own) grad = grad.squeeze(1);
    }
    grad = level.mapped(grad, i < inputs.size() ? in_sequence : in_step);
  }
  return results;
}

// torch.autograd.grad(..., is_grads_batched=True) maps by other means than torch.vmap.
void refuse_batched_gradients(const c10::OperatorHandle&, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "run_backward: is_grads_batched=True is not supported; pass the gradients one by one, or "
                              "map over them: torch.vmap(lambda g: torch.autograd.grad(y, x, g))");
}

TORCH_LIBRARY_IMPL(spikeforge, Batched, library) {
  library.impl("run_backward", torch::CppFunction::makeFromBoxedFunction<refuse_batched_gradients>());
}

TORCH_LIBRARY_IMPL(spikeforge, FuncTorchBatched, library) {
  library.impl("run", TORCH_FN(run_batched));
  library.impl("run_backward", TORCH_FN(run_backward_batched));
}

}  // namespace
}  // namespace spikeforge::ops
