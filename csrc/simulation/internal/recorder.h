// Records steps that operators run into tensors whose addresses a CUDA graph may use.
#pragma once

#include "csrc/simulation/internal/running.h"
#include "csrc/simulation/network.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace spikeforge::simulation {

class Recorder {
 public:
  // Allocates memory for at most `steps` steps.
  Recorder(Running& running, std::int64_t steps, bool spikes, std::vector<Probe> probes);

  // Runs `steps` steps, and records them in the first rows. `are_last`: true if they are the last steps of the call.
  void run(std::int64_t steps, bool are_last);

  const std::vector<Probe>& probes() const { return probes_; }
  const at::Tensor& fired() const { return fired_; }                 // bool [steps, neurons], or [0, neurons]
  const std::vector<at::Tensor>& states() const { return states_; }  // [steps, neurons chosen]

 private:
  Running& running_;
  const std::vector<Probe> probes_;
  at::Tensor fired_;
  std::vector<at::Tensor> states_;
};

// Converts the recording of a rank's neurons to the neuron indices of the whole network. Recorded states are gathered
// from all ranks, bit for bit.
Recording in_whole(Running& running, const RecordedStates& states, Recording own);

// Simulates as spikeforge::simulate does. If the tensors `into` are given, contiguous [steps, recorded neurons], states
// are recorded into them.
Recording simulate_into(Network& network, std::int64_t steps, const SimulateOptions& options,
                        std::optional<std::vector<at::Tensor>> into);

}  // namespace spikeforge::simulation
