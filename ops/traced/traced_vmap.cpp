#include <spikeforge/ops/common/batched.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/text_call.h>

#include <ATen/functorch/DynamicLayer.h>
#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

void check_randomness(const MultistepCall& call) {
  using Randomness = at::functorch::RandomnessType;
  const auto level = at::functorch::maybeCurrentDynamicLayer();
  if (!level.has_value() || level->key() != at::functorch::TransformType::Vmap) return;
  TORCH_CHECK_VALUE(level->randomness() != Randomness::Error, call.cell->forward_op,
                    ": the neuron draws random numbers; call torch.vmap with randomness=\"different\", or give a seed");
  TORCH_CHECK_NOT_IMPLEMENTED(
      level->randomness() != Randomness::Same, call.cell->forward_op,
      ": torch.vmap with randomness=\"same\" is not supported: the maps draw different numbers, "
      "as neurons of one call");
}

// Where no seed is given the maps draw as torch.vmap was told that they may.
MultistepResults map_run(const MultistepCall& call) {
  if (call.cell->draws && !call.seed.defined()) check_randomness(call);
  return run_batched(with_seed(call), call_run);
}
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
