// A built network: its state, the engine that steps it, and the calls that read and write the state.
#pragma once

#include "csrc/simulation/internal/call_guard.h"
#include "csrc/simulation/internal/engine.h"
#include "csrc/simulation/internal/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::simulation {

class Running {
 public:
  // Draws the connections. `number` identifies the network on all ranks.
  Running(const Description& description, std::int64_t number);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // The tensors of the state may be written between calls, but not replaced.
  NetworkState& state() { return state_; }
  CallGuard& guard() { return guard_; }
  Engine& engine();
  // Makes operators run the steps, as those of deterministic networks on a GPU, on any device.
  void set_uses_operators(bool uses) { uses_operators_ = uses; }

  // Prepares a call of `steps` steps: allocates the recorded states that are not given, and throws if the network
  // cannot run the steps: ValueError if a tensor does not fit, or if the weights, whose address kernels and graphs use,
  // were resized; c10::Error if other ranks do not run the same steps. If `own` is false, other calls run the steps.
  RecordedStates begin(std::int64_t steps, const std::vector<StateProbe>& recorded, bool own = true,
                       std::optional<std::vector<at::Tensor>> into = {});

  // Simulates as spikeforge::simulate does. If the tensors `into` are given, contiguous [steps, recorded neurons],
  // states are recorded into them.
  Recording simulate(std::int64_t steps, const SimulateOptions& options,
                     std::optional<std::vector<at::Tensor>> into = {});

  // Runs steps as Network::step does. It does not synchronise with a GPU.
  at::Tensor step(std::int64_t steps, const std::vector<StepInput>& inputs);

  // Sets the drives and currents of a description.
  void set_inputs(const Description& description);
  // Sets a parameter of a population: a 0-dimensional tensor, or one value for each neuron.
  void set_param(const Population& population, const std::string& name, const at::Tensor& value);
  // Suppresses the spikes of neurons of a population in a copy or in all, or ends that.
  void silence(const Population& population, const at::Tensor& neurons, bool silent, std::optional<std::int64_t> copy);

  // Returns and sets the tensors that change in a step; the second is the number of steps so far. Loading a state makes
  // a failed network usable again.
  std::vector<at::Tensor> save_state();
  void load_state(at::TensorList given);

 private:
  void check_weights() const;
  Probe probe(const StateProbe& requested);
  void reset_engines();
  Recording in_whole(const RecordedStates& states, Spikes own);

  CallGuard guard_;
  NetworkState state_;
  const void* weights_at_ = nullptr;
  bool uses_operators_ = false;
  std::unique_ptr<Engine> engine_, operators_;  // created at the first use
};

}  // namespace spikeforge::simulation
