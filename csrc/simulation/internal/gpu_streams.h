// Launches of a GPU other than one after the other on the current stream: as a graph, and on a second stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace spikeforge::simulation {

// Launches that are repeated with the same arguments, as one CUDA graph.
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

// A second stream of a GPU, beside the current one.
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream();

  // The work of `launches` follows earlier work of the current stream, and not later work.
  void run(const std::function<void()>& launches);
  // Later work of the current stream follows it.
  void join();

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

}  // namespace spikeforge::simulation
