// Launches that are repeated with the same arguments, as one CUDA graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace spikeforge::simulation {

class LaunchGraph {
 public:
  // Captures what `launches` puts on the current stream of the device of `beside`; nothing of it is run. It must have
  // run before, so that kernels are loaded and process groups connected.
  LaunchGraph(const at::Tensor& beside, const std::function<void()>& launches);
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;
  ~LaunchGraph();

  void replay();

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace spikeforge::simulation
