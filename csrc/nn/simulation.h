// Runs a network like a simulator: runs a number of steps, continues from the last one, and accesses variables between
// runs.
//
//   Simulation simulation(net);
//   simulation.run(9);              // a network without inputs
//   simulation.run(100, {current}); // the same input [*shape] in each step
//   simulation.run(x_seq);          // one step for each row of [T, *shape]
//   simulation.set("lif.v", at::zeros({3}));
//
// It computes no gradients. On a terminal, a run of more than one second shows its progress.
#pragma once

#include "csrc/nn/composite.h"

namespace spikeforge::nn {

class SPIKEFORGE_API Simulation {
 public:
  explicit Simulation(Composite network) : network_(std::move(network)) {}
  template <class Network, std::enable_if_t<!std::is_same_v<Network, Composite>, int> = 0>
  explicit Simulation(const Network& network) : network_(std::static_pointer_cast<CompositeImpl>(network.ptr())) {}

  // Runs the network from the end of the last run, and returns its outputs, [steps, ...] each.
  Tensors run(std::int64_t steps, at::TensorList inputs = {});
  Tensors run(const at::Tensor& x_seq);

  // The number of steps since construction.
  std::int64_t steps() const { return steps_; }

  // Returns a state, parameter, buffer or alias by its name relative to the network (composite.h).
  at::Tensor get(const std::string& name) const { return network_->get(name); }
  void set(const std::string& name, const at::Tensor& value) { network_->set(name, value); }

 private:
  Tensors run_sequences(const Tensors& inputs, std::int64_t steps);

  Composite network_;
  std::int64_t steps_ = 0;
};

}  // namespace spikeforge::nn
