#include <spikeforge/ops/common/batched.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/text_call.h>

namespace spikeforge::ops {
namespace {

MultistepResults map_run(const MultistepCall& call) { return run_batched(call, call_run); }
MultistepResults map_run_forward(const MultistepCall& call, bool save) {
  return forward_batched(call, save, call_run_forward);
}
Tensors map_run_backward(const BackwardCall& call) { return backward_batched(call, call_run_backward); }

void refuse_batched_run(const c10::OperatorHandle&, torch::jit::Stack*) { refuse_batched_gradients("run_backward"); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<map_run>));
  traced::register_forward<map_run_forward>(library);
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<map_run_backward>));
}

SPIKEFORGE_KERNELS(Batched, library) {
  library.impl("run_backward", torch::CppFunction::makeFromBoxedFunction<refuse_batched_run>());
}

}  // namespace
}  // namespace spikeforge::ops
