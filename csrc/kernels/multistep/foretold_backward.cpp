#include <spikeforge/base/somewhere.h>
#include <spikeforge/kernels/multistep/plan.h>

#include <vector>

namespace spikeforge::kernels {

KernelSpec foretold_backward(const ForwardLaunch& launch, int multiprocessors) {
  const Cell& cell = *launch.cell;
  std::size_t argument = 0;
  // Of those that are there; null: it is not wanted.
  const auto wanted = [&](std::size_t count, auto&& is_there) {
    std::vector<void*> grads(count);
    for (std::size_t i = 0; i < count; ++i)
      if (launch.to_come.is_wanted(launch.to_come.call, argument++) && is_there(i)) grads[i] = somewhere();
    return grads;
  };
  const auto grad_inputs = wanted(cell.inputs.size(), [](std::size_t) { return true; });
  const auto grad_initial =
      wanted(cell.states.size(), [&](std::size_t s) { return launch.initial[s].data != nullptr; });
  const auto grad_params = wanted(cell.params.size(), [&](std::size_t j) { return launch.params[j].data != nullptr; });
  const std::vector<SequenceView> grad_outputs(cell.outputs.size(),
                                               {.data = somewhere(), .time_stride = launch.neurons});
  const std::vector<SequenceView> grad_states(cell.states.size());

  BackwardLaunch backward;
  static_cast<Launch&>(backward) = launch;
  backward.grad_outputs = grad_outputs;
  backward.grad_states = grad_states;
  backward.checkpoints = launch.checkpoints;
  for (const void* const grad : grad_inputs) backward.any_grad_input |= grad != nullptr;
  for (const void* const grad : grad_params) backward.any_grad_param |= grad != nullptr;
  backward.grad_inputs = grad_inputs;
  backward.grad_initial = grad_initial;
  backward.grad_params = grad_params;
  return plan(backward, multiprocessors).spec;
}

}  // namespace spikeforge::kernels
