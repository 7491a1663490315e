#include "csrc/simulation/internal/side_stream.h"

#if defined(SPIKEFORGE_WITH_CUDA)
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace spikeforge::simulation {

#if defined(SPIKEFORGE_WITH_CUDA)
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
struct SideStream::Streams {};
SideStream::SideStream(c10::Device) {}
void SideStream::run(const std::function<void()>&) {}
void SideStream::join() {}
#endif

SideStream::~SideStream() = default;

}  // namespace spikeforge::simulation
