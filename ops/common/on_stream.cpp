#include "ops/common/on_stream.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <mutex>

namespace spikeforge::ops {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Makes the context of the device current, as a launch requires. The runtime does so at a thread's first call, but an
// autograd thread may get memory from the cache without such a call.
void ensure_context(int index) {
  thread_local int ready = -1;
  if (ready == index) return;
  C10_CUDA_CHECK(cudaSetDevice(index));
  ready = index;
}

}  // namespace

const jit::Device& gpu_of(const at::Tensor& x) {
  static std::array<jit::Device, C10_COMPILE_TIME_MAX_GPUS> devices;
  static std::array<std::once_flag, C10_COMPILE_TIME_MAX_GPUS> requested;
  const int device = x.get_device();
  const auto index = static_cast<std::size_t>(device);
  std::call_once(requested.at(index), [device, index] {
    devices[index] = {attribute(cudaDevAttrComputeCapabilityMajor, device),
                      attribute(cudaDevAttrComputeCapabilityMinor, device),
                      attribute(cudaDevAttrMultiProcessorCount, device)};
  });
  return devices[index];
}

void* stream_of(const at::Tensor& x) {
  ensure_context(x.get_device());
  return c10::cuda::getCurrentCUDAStream(x.get_device()).stream();
}

}  // namespace spikeforge::ops
