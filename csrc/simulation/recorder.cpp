#include "csrc/simulation/internal/recorder.h"
#include <ATen/ops/gt.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace spikeforge::simulation {

Recorder::Recorder(Running& running, std::int64_t steps, bool spikes, std::vector<Probe> probes)
    : running_(running),
      probes_(std::move(probes)),
      fired_(at::zeros({spikes ? steps : 0, running.size()}, running.options().dtype(at::kBool))) {
  for (const Probe& probe : probes_) states_.push_back(at::zeros({steps, probe.neurons.numel()}, running.options()));
}

void Recorder::run(std::int64_t steps, bool are_last) {
  running_.set_between_steps(false);
  for (std::int64_t i = 0; i < steps; ++i) {
    const at::Tensor& spikes = running_.advance();
    if (fired_.size(0) != 0) {
      at::Tensor row = fired_.select(0, i);
      at::gt_out(row, spikes, 0);
    }
    for (std::size_t k = 0; k < probes_.size(); ++k) {
      at::Tensor row = states_[k].select(0, i);
      at::index_select_out(row, probes_[k].group->states[probes_[k].state], 0, probes_[k].neurons);
    }
  }
  running_.end_step(are_last);
}

Recording in_whole(Running& running, const RecordedStates& states, Recording own) {
  for (std::size_t k = 0; running.ranks() != nullptr && k < states.probes.size(); ++k)
    running.join(Topic::recorded_states, states.probes[k].most, states.whole[k], states.own[k],
                 states.probes[k].places);
  own.states = states.whole;
  if (!running.partition().is_whole())
    own.neurons = running.partition().numbers().to(own.neurons.device()).index_select(0, own.neurons);
  return own;
}

}  // namespace spikeforge::simulation
