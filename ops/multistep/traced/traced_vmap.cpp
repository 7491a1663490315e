#include "ops/common/library.h"
#include "ops/multistep/batched.h"
#include "ops/multistep/text_call.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

// Without a given seed, torch.vmap's generator supplies one, according to its `randomness`: an error; one for each map,
// of which one is enough, since the maps draw as neurons of one call; or the same.
MultistepCall with_seed_of_maps(const MultistepCall& call) {
  MultistepCall seeded = with_seed(call);
  if (call.seed.defined() || !seeded.seed.defined()) return seeded;
  const auto* const batched = at::functorch::maybeGetBatchedImpl(seeded.seed);
  TORCH_CHECK_NOT_IMPLEMENTED(
      batched != nullptr, call.cell->forward_op,
      ": torch.vmap with randomness=\"same\" is not supported: the maps draw different numbers, "
      "as neurons of one call");
  seeded.seed = batched->value().select(batched->bdim(), 0);
  return seeded;
}

MultistepResults map_run(const MultistepCall& call) { return run_batched(with_seed_of_maps(call), call_run); }
MultistepResults map_run_forward(const MultistepCall& call, bool save) {
  return forward_batched(call, save, call_run_forward);
}
Tensors map_run_backward(const BackwardCall& call) { return backward_batched(call, call_run_backward); }

void refuse_batched_run(const c10::OperatorHandle&, torch::jit::Stack*) { refuse_batched_gradients("run_backward"); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<map_run>));
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<map_run_forward>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<map_run_backward>));
}

SPIKEFORGE_KERNELS(Batched, library) {
  library.impl("run_backward", torch::CppFunction::makeFromBoxedFunction<refuse_batched_run>());
}

}  // namespace
}  // namespace spikeforge::ops
