// torch.vmap of recurrent layers. If the matrix is the same for all maps they become samples of one call; else each map
// is a call of its own.
#include "ops/common/library.h"
#include "ops/multistep/batched.h"
#include "ops/multistep/folding_level.h"
#include "ops/recurrent/call.h"

#include <ATen/ops/stack.h>

#include <functional>

namespace spikeforge::ops::recurrent {
namespace {

class Maps : public FoldingLevel {
 public:
  explicit Maps(const MultistepCall& call) {
    for (const at::TensorList list : {call.inputs, call.states, call.params}) find(list);
    find(call.lengths);
    find(call.start);
  }
  using FoldingLevel::find;
  using VmapLevel::find;

  std::int64_t count() const { return size().guard_int(__FILE__, __LINE__); }

  Tensors one_of(at::TensorList list, std::int64_t i) const {
    Tensors of_map;
    for (const at::Tensor& t : list) of_map.push_back(t.defined() ? one(t, i) : t);
    return of_map;
  }

  // Calls run(i) for each index of the mapped dimension, and stacks each of its results over i.
  Tensors each_list(const std::function<Tensors(std::int64_t)>& run) const {
    std::vector<List> columns;
    for (std::int64_t i = 0; i < count(); ++i) {
      const Tensors results = run(i);
      columns.resize(results.size());
      for (std::size_t k = 0; k < results.size(); ++k) columns[k].push_back(results[k]);
    }
    Tensors joined;
    for (const List& column : columns) joined.push_back(mapped(at::stack(column)));
    return joined;
  }
};

// A call's tensors, in its own lists.
struct Lists {
  Tensors inputs, states, params;
  at::Tensor lengths, start;
  void set(MultistepCall& call) const {
    call.inputs = inputs;
    call.states = states;
    call.params = params;
    call.lengths = lengths;
    call.start = start;
  }
};

Lists one_of(const Maps& maps, const MultistepCall& call, std::int64_t i) {
  const auto one = [&](const at::Tensor& t) { return t.defined() ? maps.one(t, i) : t; };
  return {maps.one_of(call.inputs, i), maps.one_of(call.states, i), maps.one_of(call.params, i), one(call.lengths),
          one(call.start)};
}

// always(j): whether parameter j is to have a dimension for the maps.
template <class Always> Lists folded(const Maps& maps, const MultistepCall& call, const Always& always) {
  const auto list = [](const Folded& tensors) { return Tensors(tensors.begin(), tensors.end()); };
  Lists lists{list(maps.folded(call.inputs, in_sequence)),
              list(maps.folded(call.states, in_step)),
              {},
              maps.folded_samples(call.lengths, in_step),
              maps.folded_samples(call.start, in_sequence)};
  for (std::size_t j = 0; j < call.params.size(); ++j)
    lists.params.push_back(maps.folded_param(call.params[j], call.inputs[0].dim() - 1, always(j)));
  return lists;
}

RecurrentResults map_forward(const RecurrentCall& call, bool save) {
  Maps maps(call);
  maps.find(call.w);
  if (call.spikes.defined()) maps.find(call.spikes);
  if (maps.maps(call.w)) {
    const std::size_t outputs = call.cell->outputs.size(), states = call.cell->states.size();
    Tensors all = maps.each_list([&](std::int64_t i) {
      RecurrentCall of_map = call;
      const Lists lists = one_of(maps, call, i);
      lists.set(of_map);
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
  const Lists lists = folded(maps, call, [](std::size_t) { return false; });
  lists.set(together);
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
  Maps maps(call);
  maps.find(call.grad_outputs);
  maps.find(call.grad_states);
  maps.find(call.w);
  maps.find(call.checkpoints);
  const std::size_t inputs = call.inputs.size(), first_param = inputs + call.cell->states.size();
  if (maps.maps(call.w))
    return maps.each_list([&](std::int64_t i) {
      RecurrentBackwardCall of_map = call;
      const Lists lists = one_of(maps, call, i);
      lists.set(of_map);
      const Tensors grad_outputs = maps.one_of(call.grad_outputs, i), grad_states = maps.one_of(call.grad_states, i);
      of_map.grad_outputs = grad_outputs;
      of_map.grad_states = grad_states;
      of_map.w = maps.one(call.w, i);
      of_map.checkpoints = maps.one(call.checkpoints, i);
      return call_backward(of_map);
    });
  RecurrentBackwardCall together = call;
  const Lists lists = folded(maps, call, [&](std::size_t j) { return call.needs_grad[first_param + j]; });
  lists.set(together);
  const Folded grad_outputs = maps.folded(call.grad_outputs, in_sequence),
               grad_states = maps.folded(call.grad_states, call.store_states ? in_sequence : in_step);
  together.grad_outputs = grad_outputs;
  together.grad_states = grad_states;
  together.checkpoints = maps.folded(call.checkpoints, in_checkpoints);
  Tensors results = call_backward(together);
  auto* result = results.begin();
  for (std::size_t i = 0; i < call.needs_grad.size(); ++i) {
    if (!call.needs_grad[i]) continue;
    at::Tensor& grad = *result++;
    if (i >= first_param) grad = maps.without_alignment(grad, call.params[i - first_param].dim());
    grad = maps.mapped(grad, i < inputs ? in_sequence : in_step);
  }
  return results;
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
