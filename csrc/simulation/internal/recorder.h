// Records steps that operators take, in tensors whose addresses a CUDA graph may know.
#pragma once

#include <spikeforge/simulation/internal/running.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace spikeforge::simulation {

class Recorder {
 public:
  // Of up to so many steps.
  Recorder(Running& running, std::int64_t steps, bool spikes, std::vector<Probe> probes);

  // The first `steps` rows become those of as many steps.
  void run(std::int64_t steps);

  const at::Tensor& fired() const { return fired_; }                 // bool [steps, neurons], or [0, neurons]
  const std::vector<at::Tensor>& states() const { return states_; }  // [steps, neurons chosen]

 private:
  Running& running_;
  const std::vector<Probe> probes_;
  at::Tensor fired_;
  std::vector<at::Tensor> states_;
};

}  // namespace spikeforge::simulation
