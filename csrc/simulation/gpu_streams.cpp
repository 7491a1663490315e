#include "csrc/simulation/internal/gpu_streams.h"

#if defined(SPIKEFORGE_WITH_CUDA)
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace spikeforge::simulation {

#if defined(SPIKEFORGE_WITH_CUDA)
struct LaunchGraph::Graph {
  at::cuda::CUDAGraph graph;
};

LaunchGraph::LaunchGraph(const at::Tensor& beside, const std::function<void()>& launches)
    : graph_(std::make_unique<Graph>()) {
  const c10::cuda::CUDAGuard device(beside.device());
  // The default stream cannot be captured. The capture mode is thread-local, because other threads, such as the
  // watchdog of a process group, call CUDA during the capture.
  c10::cuda::getCurrentCUDAStream().synchronize();
  const c10::cuda::CUDAStreamGuard stream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, beside.device().index()));
  graph_->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  launches();
  graph_->graph.capture_end();
}

void LaunchGraph::replay() { graph_->graph.replay(); }

struct SideStream::Streams {
  explicit Streams(c10::Device device) : side(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}
  const c10::cuda::CUDAStream side;
  at::cuda::CUDAEvent forked, joined;
};

SideStream::SideStream(c10::Device device) : streams_(std::make_unique<Streams>(device)) {}

void SideStream::run(const std::function<void()>& launches) {
  streams_->forked.record(c10::cuda::getCurrentCUDAStream(streams_->side.device_index()));
  streams_->forked.block(streams_->side);
  const c10::cuda::CUDAStreamGuard guard(streams_->side);
  launches();
  streams_->joined.record(streams_->side);
}

void SideStream::join() { streams_->joined.block(c10::cuda::getCurrentCUDAStream(streams_->side.device_index())); }
#else
struct LaunchGraph::Graph {};
LaunchGraph::LaunchGraph(const at::Tensor&, const std::function<void()>&) {}
void LaunchGraph::replay() {}
struct SideStream::Streams {};
SideStream::SideStream(c10::Device) {}
void SideStream::run(const std::function<void()>&) {}
void SideStream::join() {}
#endif

LaunchGraph::~LaunchGraph() = default;
SideStream::~SideStream() = default;

}  // namespace spikeforge::simulation
