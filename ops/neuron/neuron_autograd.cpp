#include <spikeforge/ops/common/autograd.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/neuron/public_call.h>

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_neuron{call_forward, call_backward};

SPIKEFORGE_KERNELS(Autograd, library) {
  register_public<run_autograd<lowered_neuron>>(library);
  register_lowered<forward_autograd<lowered_neuron>, backward_autograd<lowered_neuron>>(library);
}

}  // namespace
}  // namespace spikeforge::ops
