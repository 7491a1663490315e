#include "ops/common/library.h"
#include "ops/multistep/autograd.h"
#include "ops/multistep/predefined/public_call.h"

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_neuron{call_forward, call_backward};

MultistepResults call_checked(const MultistepCall& call) {
  // Numbers are checked by the operator, but not once they are tensors.
  for (std::size_t j = 0; j < call.cell->params.size(); ++j)
    if (!call.param(j).defined()) check_number(call.op_name(), call.cell->params[j], call.numbers[j]);
  return call_public(call);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  register_public<run_autograd<lowered_neuron>>(library);
  register_lowered<forward_autograd<lowered_neuron>, backward_autograd<lowered_neuron>>(library);
}

}  // namespace

MultistepResults call_from_cpp(const MultistepCall& call) { return call_at_once<lowered_neuron>(call, call_checked); }

}  // namespace spikeforge::ops
