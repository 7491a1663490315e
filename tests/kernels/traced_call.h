// A call of a traced cell, forward and backward, with the properties that determine its kernel. Tensors have arbitrary
// addresses.
#pragma once

#include "csrc/base/somewhere.h"
#include "csrc/kernels/multistep/traced_cell.h"

#include <memory>
#include <vector>

namespace spikeforge::tests {

template <class Forward, class Backward> struct TracedCall {
  TracedCall(const char* text, DType type, std::int64_t steps, std::int64_t neurons, std::int64_t neurons_of_a_param)
      : cell(intern(text)),
        inputs(cell->inputs.size(), {somewhere(), neurons, 1}),
        grad_outputs(cell->outputs.size(), {somewhere(), neurons, 1}),
        grad_states(cell->states.size()),
        initial(cell->states.size()),
        params(cell->params.size(), {.data = somewhere(), .type = type, .count = neurons_of_a_param}),
        outputs(cell->outputs.size(), somewhere()),
        states(cell->states.size(), somewhere()),
        grad_inputs(cell->inputs.size(), somewhere()),
        grad_initial(cell->states.size()),
        grad_params(cell->params.size(), somewhere()) {
    for (Launch* const launch : {static_cast<Launch*>(&forward), static_cast<Launch*>(&backward)}) {
      launch->cell = cell.get();
      launch->type = type;
      launch->steps = steps;
      launch->neurons = neurons;
      launch->checkpoint_length = cell->checkpoint_length(type);
      launch->inputs = inputs;
      launch->initial = initial;
      launch->params = params;
    }
    forward.outputs = outputs;
    forward.states = states;
    forward.checkpoints = somewhere();
    backward.grad_outputs = grad_outputs;
    backward.grad_states = grad_states;
    backward.checkpoints = somewhere();
    backward.any_grad_input = true;
    backward.any_grad_param = !params.empty();
    backward.grad_inputs = grad_inputs;
    backward.grad_initial = grad_initial;
    backward.grad_params = grad_params;
  }
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;

  std::shared_ptr<const TracedCell> cell;
  std::vector<SequenceView> inputs, grad_outputs, grad_states;
  std::vector<StateView> initial;
  std::vector<ParamView> params;
  std::vector<void*> outputs, states, grad_inputs, grad_initial, grad_params;
  Forward forward;
  Backward backward;
};

}  // namespace spikeforge::tests
