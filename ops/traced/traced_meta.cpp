// Shapes, types and layouts alone, for FakeTensor, torch.compile and torch.export.
#include <spikeforge/ops/traced/prepare.h>

#include <torch/library.h>

namespace spikeforge::ops {
namespace {

TracedResults forward_meta(const TracedArguments& args, bool save) {
  return allocate_forward(args, prepare<c10::SymInt>(args), save);
}

Tensors backward_meta(const TracedBackwardArguments& args) {
  const auto prepared = prepare<c10::SymInt>(args);
  check_backward(args, prepared);
  return reduce_and_list(args, allocate_backward(args, prepared));
}

TORCH_LIBRARY_IMPL(spikeforge, Meta, library) {
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward_meta>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_meta>));
}

}  // namespace
}  // namespace spikeforge::ops
