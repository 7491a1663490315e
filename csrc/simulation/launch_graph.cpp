#include "csrc/simulation/internal/launch_graph.h"

#if defined(SPIKEFORGE_WITH_CUDA)
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
  // The default stream cannot be captured. The mode is thread-local, because other threads, such as the watchdog of a
  // process group, call CUDA during the capture.
  c10::cuda::getCurrentCUDAStream().synchronize();
  const c10::cuda::CUDAStreamGuard stream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, beside.device().index()));
  graph_->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  launches();
  graph_->graph.capture_end();
}

void LaunchGraph::replay() { graph_->graph.replay(); }
#else
struct LaunchGraph::Graph {};
LaunchGraph::LaunchGraph(const at::Tensor&, const std::function<void()>&) {}
void LaunchGraph::replay() {}
#endif

LaunchGraph::~LaunchGraph() = default;

}  // namespace spikeforge::simulation
