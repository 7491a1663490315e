// The engines run the steps of a network: CpuSteps (cpu_steps.h), GpuSteps (gpu_steps.h) and, for deterministic or
// learning networks on a GPU and for kernel packs, OperatorSteps (operator_steps.h). All give the same results.
#pragma once

#include "csrc/simulation/internal/external_input.h"
#include "csrc/simulation/internal/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace spikeforge::simulation {

// Tensors for the states that a call records: `own` for own neurons, [steps, neurons of the probe], and `whole`,
// [steps, requested neurons]. They are the same tensors if there are no other ranks. All are allocated before the first
// step.
struct RecordedStates {
  std::vector<Probe> probes;
  std::vector<at::Tensor> own, whole;
};

// int64 [spikes]: steps, and indices of own neurons.
struct Spikes {
  at::Tensor steps, neurons;
};

struct Steps {
  std::int64_t count = 0;
  const ExternalInput& input;
};

class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  // Allocates the memory that the steps of a call need.
  virtual void prepare() {}

  // Runs steps, and writes the states of the probes to `states.own`. Returns the spikes if `spikes` is true.
  virtual Spikes run(const Steps& steps, bool spikes, const RecordedStates& states) = 0;

  // Runs steps without other ranks, and writes the spikes to `fired`, bool [steps, neurons]. It does not synchronise.
  virtual void step(const Steps& steps, const at::Tensor& fired) = 0;
};

}  // namespace spikeforge::simulation
