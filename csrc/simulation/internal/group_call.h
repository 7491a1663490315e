// One step of a group's neurons, as a multistep call that updates the states in place.
#pragma once

#include "csrc/simulation/internal/state.h"
#include "ops/multistep/multistep.h"

#include <optional>
#include <vector>

namespace spikeforge::simulation {

class GroupCall {
 public:
  // Inputs and output are [1, neurons of the part]. `seed` is undefined if the neurons do not draw random numbers.
  // `offset` is the number of steps before, on the network's device, or undefined if the launch sets it.
  GroupCall(const Group& group, const GroupPart& part, std::vector<at::Tensor> inputs, const at::Tensor& output,
            const at::Tensor& seed, const at::Tensor& offset);
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

  const ForwardLaunch& launch() const { return described_->launch; }
  ForwardLaunch& launch() { return described_->launch; }

 private:
  const std::vector<at::Tensor> inputs_, states_, params_;
  ops::MultistepCall call_;
  ops::MultistepResults results_;
  ops::Prepared prepared_;
  std::optional<ops::DescribedForward> described_;
};

}  // namespace spikeforge::simulation
