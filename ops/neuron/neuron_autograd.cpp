#include <spikeforge/ops/common/autograd.h>
#include <spikeforge/ops/common/library.h>
#include <spikeforge/ops/neuron/public_call.h>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace spikeforge::ops {
namespace {

constexpr Lowered lowered_neuron{call_forward, call_backward};

SPIKEFORGE_KERNELS(Autograd, library) {
  register_public<run_autograd<lowered_neuron>>(library);
  // A second derivative is refused in words.
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)             \
  library.impl(#name "_forward", torch::autograd::autogradNotImplementedFallback()); \
  library.impl(#name "_backward", torch::autograd::autogradNotImplementedFallback());
#include <spikeforge/neuron/neurons.def>
}

}  // namespace
}  // namespace spikeforge::ops
