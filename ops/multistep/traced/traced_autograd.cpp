#include "ops/common/library.h"
#include "ops/multistep/autograd.h"
#include "ops/multistep/text_call.h"
#include "ops/multistep/traced/call_from_cpp.h"

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_run{call_run_forward, call_run_backward};

MultistepResults run_with_seed(const MultistepCall& call) {
  return run_autograd<lowered_run>(needs_seed(call) ? with_seed(call) : call);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_with_seed>));
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward_autograd<lowered_run>>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_autograd<lowered_run>>));
}

}  // namespace

MultistepResults call_run_from_cpp(const MultistepCall& call) {
  return needs_seed(call) ? call_run(call) : call_at_once<lowered_run>(call, call_run);
}

}  // namespace spikeforge::ops
