#include <spikeforge/ops/common/autograd.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/text_call.h>

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_run{call_run_forward, call_run_backward};

MultistepResults run_with_seed(const MultistepCall& call) { return run_autograd<lowered_run>(with_seed(call)); }

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_with_seed>));
  traced::register_forward<forward_autograd<lowered_run>>(library);
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_autograd<lowered_run>>));
}

}  // namespace
}  // namespace spikeforge::ops
