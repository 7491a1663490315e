#include <spikeforge/ops/neuron/on_stream.h>
#include <spikeforge/ops/traced/prepare.h>
#include <spikeforge/runtime/traced_multistep_launch.h>

#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

namespace spikeforge::ops {
namespace {

template <class Launch>
void run(const Launch& launch, const at::Tensor& x) {
  runtime::launch(launch, gpu_of(x), stream_of(x));
}

TracedResults forward_cuda(const TracedArguments& args, bool save) {
  const auto prepared = prepare(args);  // first: a CPU input beside a CUDA state comes here too
  const c10::cuda::OptionalCUDAGuard guard(prepared.first_input.device());
  TracedResults results = allocate_forward(args, prepared, save);
  const TracedForwardCall call(args, prepared, results);
  run(call.launch, prepared.first_input);
  return results;
}

Tensors backward_cuda(const TracedBackwardArguments& args) {
  const auto prepared = prepare(args);
  check_backward(args, prepared);
  const c10::cuda::OptionalCUDAGuard guard(prepared.first_input.device());
  const TracedGradients gradients = allocate_backward(args, prepared);
  const TracedBackwardCall call(args, prepared, gradients);
  run(call.launch, prepared.first_input);
  return reduce_and_list(args, gradients);
}

TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) {
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward_cuda>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_cuda>));
}

}  // namespace
}  // namespace spikeforge::ops
