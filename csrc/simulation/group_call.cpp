#include <spikeforge/simulation/internal/group_call.h>

#include <utility>

namespace spikeforge::simulation {

GroupCall::GroupCall(const Group& group, std::vector<at::Tensor> inputs, const at::Tensor& output,
                     const at::Tensor& offset)
    : inputs_(std::move(inputs)), states_(group.states), params_(group.params) {
  call_.cell = group.cell.get();
  call_.inputs = inputs_;
  call_.states = states_;
  call_.params = params_;
  call_.seed = group.seed.value_or(at::Tensor());
  if (group.seed) call_.offset = offset;
  prepared_ = ops::prepare(call_);
  results_.outputs.resize(group.cell->outputs.size());  // the others are computed, and go nowhere
  results_.outputs[0] = output;
  results_.states.append(states_.begin(), states_.end());  // in place: a neuron is loaded before it is stored
  described_.emplace(call_, prepared_, results_);
}

}  // namespace spikeforge::simulation
