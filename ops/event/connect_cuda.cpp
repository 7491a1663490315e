#include "csrc/kernels/event/connect.h"
#include "ops/common/on_stream.h"
#include "ops/event/connect_steps.h"

#include <c10/cuda/CUDAGuard.h>

namespace spikeforge::ops::sparse {

void connect_cuda(event::ConnectStep step, const event::ConnectArguments& args, const at::Tensor& beside) {
  const c10::cuda::OptionalCUDAGuard guard(beside.device());
  event::launch_connect_step(step, args, gpu_of(beside), stream_of(beside));
}

}  // namespace spikeforge::ops::sparse
