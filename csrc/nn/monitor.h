// Records selected states and outputs of a network while it runs, by their names relative to the network.
//
//   Monitor monitor(net, {"lif.v", "lif.out"});
//   Simulation(net).run(1000);
//   at::Tensor v = monitor["lif.v"];  // [1000, *shape], after each step's reset
//   monitor.write_npy("run/");        // run/lif.v.npy, run/lif.out.npy
//   monitor.write_csv("run.csv");     // one row per step; scripts/plot_monitor.py plots both formats
//
// It records into tensors during its lifetime, over any number of calls. If a Simulation sets the number of steps, the
// tensors are allocated once.
#pragma once

#include "csrc/nn/composite.h"
#include "csrc/nn/recording.h"

#include <string>
#include <vector>

namespace spikeforge::nn {

class SPIKEFORGE_API Monitor {
 public:
  // Throws c10::ValueError for a name that is neither a state nor an output.
  Monitor(Composite network, const Names& names);
  template <class Network>
  Monitor(const Network& network, const Names& names)
      : Monitor(Composite(std::static_pointer_cast<CompositeImpl>(network.ptr())), names) {}

  const Names& names() const { return names_; }
  // Returns the recorded values, [steps so far, *shape]; undefined before the first step. Throws c10::ValueError for a
  // name that is not recorded.
  at::Tensor operator[](const std::string& name) const;

  // Writes one file per name, <folder>/<name>.npy, and creates the folder. Throws std::runtime_error on failure.
  void write_npy(const std::string& folder) const;
  // Writes one table: the step, then one column per element, "lif.v[3]". All names must have the same number of steps.
  void write_csv(const std::string& file) const;

 private:
  Composite network_;
  Names names_;
  std::vector<std::shared_ptr<Recording>> recordings_;
};

}  // namespace spikeforge::nn
