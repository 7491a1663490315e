// The tensors of a network under way, and its step by operators, on any device. cpu_steps.h is the CPU's.
#pragma once

#include <spikeforge/simulation/internal/description.h>
#include <spikeforge/simulation/internal/plastic.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spikeforge::simulation {

class CpuSteps;
class GpuSteps;

// Neighbouring populations of one neuron, which are stepped together: neurons begin, ..., end - 1.
struct Group {
  std::int64_t begin = 0, end = 0;
  Neuron neuron;
  std::shared_ptr<const TracedCell> cell;
  std::vector<at::Tensor> states;  // [end - begin] each, for as long as the network lives
  std::vector<at::Tensor> params;  // the same, or 0-dimensional
  std::optional<at::Tensor> seed;  // of a neuron that draws

  std::int64_t size() const { return end - begin; }
};

// Poisson input of columns, each at most once: drives that overlap are in several of these. A number is one of column,
// step and seed.
struct PoissonLayer {
  at::Tensor rates, weights;  // [columns]; 0 where nothing comes
  at::Tensor seed;
};

// What is recorded of states: numbers of neurons within the group, on the network's device.
struct Probe {
  const Group* group = nullptr;
  std::size_t state = 0;
  at::Tensor neurons;
};

class Running {
 public:
  // Draws the connections.
  explicit Running(const Description& description);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  const Connectivity& matrix() const { return matrix_; }
  at::TensorOptions options() const { return buffer_.options(); }
  std::int64_t size() const { return size_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t step() const { return step_.item<std::int64_t>(); }

  // Throws ValueError for a population, a state or a neuron that is not there.
  Probe probe(const StateProbe& asked) const;

  // Throws ValueError where who was given the weights has resized them: kernels and graphs know their address.
  void check_weights() const;

  // What changes in a step; the second is the number of steps so far.
  std::vector<at::Tensor> state() const;
  void load_state(at::TensorList state);

  // One step by operators. The spikes of it, valid until the next. Waits for nothing, and can be captured in a CUDA
  // graph once it has run.
  const at::Tensor& advance();

  // Connections that learn: before a step on the CPU what arrives in it, and after it what fired.
  std::deque<PlasticConnections>& plastic() { return plastic_; }
  void arrive(std::int64_t step);
  void fire(std::int64_t step, const std::vector<std::int64_t>& fired);

  // What steps on the CPU by, made at the first call.
  CpuSteps& cpu_steps();
  // What steps on a GPU by, made at the first call, or null: then operators do.
  GpuSteps* gpu_steps();

 private:
  friend class CpuSteps;
  friend class GpuSteps;

  void make_groups(const Description& description);
  void connect(const Description& description);
  void make_drives(const Description& description);
  void make_current(const Description& description);
  std::vector<at::Tensor> changing() const;

  const std::vector<Population> populations_;
  const bool deterministic_;
  std::int64_t size_ = 0, columns_ = 0;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;  // of each population
  const Neuron poisson_;
  std::vector<PoissonLayer> drives_;
  Connectivity matrix_;
  at::Tensor near_;  // int32 [size], on a GPU: how many connections of a row have delay 1, and come first
  std::deque<PlasticConnections> plastic_;
  const void* weights_at_ = nullptr;
  at::Tensor buffer_;   // [slots, columns]: what is on its way
  at::Tensor step_;     // int64, 0-dimensional, on the device
  at::Tensor spikes_;   // [size], of the last step
  at::Tensor current_;  // [columns]; undefined where there is none
  std::unique_ptr<CpuSteps> cpu_steps_;
  std::optional<std::unique_ptr<GpuSteps>> gpu_steps_;  // once it was tried; null where operators have to do
};

}  // namespace spikeforge::simulation
