#include <spikeforge/ops/lava/arguments.h>
#include <spikeforge/ops/neuron/on_stream.h>

#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

namespace spikeforge::ops {
namespace {

std::vector<at::Tensor> forward_cuda(const LoihiArguments& args) {
  const auto prepared = prepare(args);  // first: a CPU x beside a CUDA state comes here too
  check_values(args);                   // those that are on the CPU
  const c10::cuda::OptionalCUDAGuard guard(prepared.x.device());
  std::vector<at::Tensor> results = allocate(args, prepared);
  Copies copies;
  runtime::launch(describe_launch(args, prepared, results, copies), gpu_of(prepared.x), stream_of(prepared.x));
  return results;
}

TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) { library.impl("loihi_forward", TORCH_FN(loihi_kernel<forward_cuda>)); }

}  // namespace
}  // namespace spikeforge::ops
