#include <spikeforge/ops/common/autograd.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/common/text_call.h>

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_run{call_run_forward, call_run_backward};

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_autograd<lowered_run>>));
  traced::register_forward<forward_autograd<lowered_run>>(library);
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_autograd<lowered_run>>));
}

}  // namespace
}  // namespace spikeforge::ops
