// Steps of a network by operators, on any device. On a GPU, they are replays of a CUDA graph.
#pragma once

#include "csrc/simulation/internal/call_guard.h"
#include "csrc/simulation/internal/engine.h"
#include "csrc/simulation/internal/gpu_streams.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace spikeforge::simulation {

class OperatorSteps final : public Engine {
 public:
  OperatorSteps(NetworkState& state, CallGuard& guard);

  Spikes run(const Steps& steps, bool spikes, const RecordedStates& states) override;
  void step(const Steps& steps, const at::Tensor& fired) override;

 private:
  template <class Recorded> void run_pieces(const Steps& steps, const Recorded& recorded);
  void record(bool spikes, const std::vector<Probe>& probes);
  void set_input(const ExternalInput& input, std::int64_t first, std::int64_t count);
  void run_piece(std::int64_t steps, bool has_input);
  void advance(const at::Tensor& input);
  void deliver();
  at::Tensor joined_spikes(const at::Tensor& own);
  void make_whole_drives();
  at::Tensor driven(const at::Tensor& arriving);

  NetworkState& state_;
  CallGuard& guard_;
  const Neuron poisson_;
  std::vector<PoissonLayer> whole_drives_;  // for the columns of all ranks
  at::Tensor own_columns_;                  // the indices of own columns among them
  // The recording of a piece of steps, whose addresses the graph uses.
  std::vector<Probe> probes_;
  at::Tensor fired_;                // bool [steps, neurons], or [0, neurons]
  std::vector<at::Tensor> states_;  // [steps, neurons of the probe]
  at::Tensor input_;                // [steps, columns], of the piece
  bool has_run_ = false;            // true if a piece has run, so that kernels are loaded
  std::unique_ptr<LaunchGraph> graph_;
};

}  // namespace spikeforge::simulation
