#include <spikeforge/ops/common/autograd.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/traced/arguments.h>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_run{call_run_forward, call_run_backward};

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_autograd<lowered_run>>));
  // A second derivative is refused in words.
  library.impl("run_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("run_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace spikeforge::ops
