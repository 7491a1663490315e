// torch.vmap of recurrent layers. If the matrix is the same for all maps, they become samples of one call; otherwise
// each map is a separate call.
#include "ops/common/library.h"
#include "ops/multistep/batched.h"
#include "ops/multistep/folding_level.h"
#include "ops/recurrent/call.h"

namespace spikeforge::ops::recurrent {
namespace {

Folded one_of(const FoldingLevel& maps, at::TensorList list, std::int64_t i) {
  Folded of_map;
  for (const at::Tensor& t : list) of_map.push_back(t.defined() ? maps.one(t, i) : t);
  return of_map;
}

CallTensors one_of(const FoldingLevel& maps, const MultistepCall& call, std::int64_t i) {
  const auto one = [&](const at::Tensor& t) { return t.defined() ? maps.one(t, i) : t; };
  return {one_of(maps, call.inputs, i), one_of(maps, call.states, i), one_of(maps, call.params, i), one(call.lengths),
          one(call.start)};
}

RecurrentResults map_forward(const RecurrentCall& call, bool save) {
  FoldingLevel maps(call);
  maps.find(call.w);
  if (call.spikes.defined()) maps.find(call.spikes);
  if (maps.maps(call.w)) {
    const std::size_t outputs = call.cell->outputs.size(), states = call.cell->states.size();
    const List all = maps.each([&](std::int64_t i) {
      RecurrentCall of_map = call;
      const CallTensors tensors = one_of(maps, call, i);
      tensors.set(of_map);
      of_map.w = maps.one(call.w, i);
      if (call.spikes.defined()) of_map.spikes = maps.one(call.spikes, i);
      RecurrentResults results = call_forward(of_map, save);
      Tensors list = std::move(results.outputs);
      list.append(results.states.begin(), results.states.end());
      if (save) list.append({results.current, results.checkpoints});
      return list;
    });
    RecurrentResults results;
    results.outputs = Tensors(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(outputs));
    results.states = Tensors(all.begin() + static_cast<std::ptrdiff_t>(outputs),
                             all.begin() + static_cast<std::ptrdiff_t>(outputs + states));
    if (save) {
      results.current = all[outputs + states];
      results.checkpoints = all[outputs + states + 1];
    }
    return results;
  }
  RecurrentCall together = call;
  const CallTensors tensors = maps.folded(call, [](std::size_t) { return false; });
  tensors.set(together);
  if (call.spikes.defined()) together.spikes = maps.folded(call.spikes, in_sequence);
  RecurrentResults results = call_forward(together, save);
  results.outputs = maps.all_mapped(std::move(results.outputs), in_sequence);
  results.states = maps.all_mapped(std::move(results.states), call.store_states ? in_sequence : in_step);
  if (save) {
    results.current = maps.mapped(results.current, in_sequence);
    results.checkpoints = maps.mapped(results.checkpoints, in_checkpoints);
  }
  return results;
}

Tensors map_backward(const RecurrentBackwardCall& call) {
  FoldingLevel maps(call);
  maps.find(call.grad_outputs);
  maps.find(call.grad_states);
  maps.find(call.w);
  maps.find(call.checkpoints);
  if (maps.maps(call.w))
    return traced::tensors_of(maps.each([&](std::int64_t i) {
      RecurrentBackwardCall of_map = call;
      const CallTensors tensors = one_of(maps, call, i);
      tensors.set(of_map);
      const Folded grad_outputs = one_of(maps, call.grad_outputs, i), grad_states = one_of(maps, call.grad_states, i);
      of_map.grad_outputs = grad_outputs;
      of_map.grad_states = grad_states;
      of_map.w = maps.one(call.w, i);
      of_map.checkpoints = maps.one(call.checkpoints, i);
      return call_backward(of_map);
    }));
  RecurrentBackwardCall together = call;
  const CallTensors tensors = maps.folded(call, [&](std::size_t j) { return wants_grad_param(call, j); });
  tensors.set(together);
  const Folded grad_outputs = maps.folded(call.grad_outputs, in_sequence),
               grad_states = maps.folded(call.grad_states, call.store_states ? in_sequence : in_step);
  together.grad_outputs = grad_outputs;
  together.grad_states = grad_states;
  together.checkpoints = maps.folded(call.checkpoints, in_checkpoints);
  return maps.mapped_gradients(call, call_backward(together));
}

RecurrentResults map_run(const RecurrentCall& call) { return map_forward(call, /*save=*/false); }

void refuse_batched_recurrent(const c10::OperatorHandle&, torch::jit::Stack*) {
  refuse_batched_gradients("recurrent_run_backward");
}

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl("recurrent_run", TORCH_FN(run_kernel<map_run>));
  library.impl("recurrent_run_forward", TORCH_FN(forward_kernel<map_forward>));
  library.impl("recurrent_run_backward", TORCH_FN(backward_kernel<map_backward>));
}

SPIKEFORGE_KERNELS(Batched, library) {
  library.impl("recurrent_run_backward", torch::CppFunction::makeFromBoxedFunction<refuse_batched_recurrent>());
}

}  // namespace
}  // namespace spikeforge::ops::recurrent
