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
  // Captures the work that `launches` enqueues on the current stream of the device of `beside`, without running it.
  // `launches` must have run before, so that kernels are loaded and process groups are connected.
  LaunchGraph(const at::Tensor& beside, const std::function<void()>& launches);
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;
  ~LaunchGraph();

  void replay();

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

// A second stream of a GPU, in addition to the current one.
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream();

  // Runs `launches` on the second stream, after earlier work of the current stream and concurrently with later work.
  void run(const std::function<void()>& launches);
  // Makes later work of the current stream wait for the second stream.
  void join();

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

}  // namespace spikeforge::simulation
