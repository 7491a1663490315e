#include <spikeforge/ops/neuron/lowered.h>
#include <spikeforge/ops/neuron/prepare.h>
#include <spikeforge/runtime/multistep_launch.h>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>

namespace spikeforge::ops {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

const runtime::Device& device_of(const at::Tensor& x) {
  static std::array<runtime::Device, C10_COMPILE_TIME_MAX_GPUS> devices;
  static std::array<std::once_flag, C10_COMPILE_TIME_MAX_GPUS> asked;
  const int device = x.get_device();
  const auto index = static_cast<std::size_t>(device);
  std::call_once(asked.at(index), [device, index] {
    devices[index] = {attribute(cudaDevAttrComputeCapabilityMajor, device),
                      attribute(cudaDevAttrComputeCapabilityMinor, device),
                      attribute(cudaDevAttrMultiProcessorCount, device)};
  });
  return devices[index];
}

// A launch needs a current context. The runtime makes the device's current at a thread's first call to it; a thread of
// autograd's may come here with memory from the cache and no such call before.
void ensure_context(int index) {
  thread_local int ready = -1;
  if (ready == index) return;
  C10_CUDA_CHECK(cudaSetDevice(index));
  ready = index;
}

template <class Launch>
void run(const Launch& launch, const at::Tensor& x) {
  ensure_context(x.get_device());
  runtime::launch(launch, device_of(x), c10::cuda::getCurrentCUDAStream(x.get_device()).stream());
}

ForwardResults forward_cuda(const NeuronArguments& args, bool save) {
  const Prepared prepared = prepare(args);  // first: a CPU x beside a CUDA state comes here too
  const c10::cuda::OptionalCUDAGuard guard(prepared.x.device());
  ForwardResults results = allocate_forward(args, prepared, save);
  Copies copies;
  run(forward_launch(args, prepared, results, copies), prepared.x);
  return results;
}

std::vector<at::Tensor> backward_cuda(const BackwardArguments& args) {
  const Prepared prepared = prepare(args);
  check_backward(args, prepared);
  const c10::cuda::OptionalCUDAGuard guard(prepared.x.device());
  const BackwardResults results = allocate_backward(args, prepared);
  Copies copies;
  run(backward_launch(args, prepared, results, copies), prepared.x);
  return reduce_and_list(args, results);
}

TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) { register_lowered<forward_cuda, backward_cuda>(library); }

}  // namespace
}  // namespace spikeforge::ops
