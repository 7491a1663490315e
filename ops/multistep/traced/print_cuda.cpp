#include "ops/multistep/traced/print_cuda.h"
#include "csrc/kernels/multistep/typical_kernels.h"
#include "ops/common/checks.h"
#include "ops/common/layout.h"
#include "ops/common/library.h"
#include "ops/multistep/text_call.h"

namespace spikeforge::ops {

std::string print_cuda(std::string_view neuron, c10::ScalarType dtype) {
  const std::shared_ptr<const TracedCell> held = cell_of(neuron, "print_cuda");
  const TracedCell& cell = *held;
  TORCH_CHECK_TYPE(is_supported(dtype), "print_cuda(", cell.name,
                   "): dtype must be float16, bfloat16, float32 or float64, but is ", dtype);
  TORCH_CHECK_VALUE(!cell.is_too_long(), "print_cuda(", cell.name, "): ", cell.why_too_long());
  return kernels::print_cuda(cell, {.type = dtype_of(dtype)});
}

namespace {

std::string text_on_a_line(std::string_view neuron) { return graph::on_a_line(neuron); }

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) {
  library.impl("print_cuda", TORCH_FN(print_cuda));
  library.impl("text_on_a_line", TORCH_FN(text_on_a_line));
}

}  // namespace

}  // namespace spikeforge::ops
