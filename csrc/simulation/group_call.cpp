#include "csrc/simulation/internal/group_call.h"

#include <utility>

namespace spikeforge::simulation {

namespace {

// Selects the part's values of tensors with one value per neuron of a group; other tensors apply to all neurons.
std::vector<at::Tensor> of_part(const std::vector<at::Tensor>& tensors, const GroupPart& part) {
  std::vector<at::Tensor> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& t : tensors) parts.push_back(t.dim() == 0 ? t : t.narrow(0, part.first, part.size));
  return parts;
}

}  // namespace

GroupCall::GroupCall(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs,
                     const at::Tensor& output, const at::Tensor& seed, const at::Tensor& offset)
    : inputs_(std::move(inputs)), states_(of_part(group.states, part)), params_(of_part(group.params, part)) {
  call_.cell = group.cell.get();
  call_.inputs = inputs_;
  call_.states = states_;
  call_.params = params_;
  call_.seed = seed;
  if (seed.defined()) call_.offset = offset;
  prepared_ = ops::prepare(call_);
  results_.outputs.resize(group.cell->outputs.size());  // the other outputs are discarded
  results_.outputs[0] = output;
  results_.states.append(states_.begin(), states_.end());  // in place: a neuron's state is loaded before it is stored
  described_.emplace(call_, prepared_, results_);
  launch().draws.first = part.drawn;
}

}  // namespace spikeforge::simulation
