// The lowered operators on each device, and the public ones below autograd.
#include <spikeforge/ops/neuron/public_call.h>

namespace spikeforge::ops {
namespace {

// Nothing will be differentiated, so nothing is saved.
MultistepResults run_inference(const MultistepCall& call) { return call_forward(call, /*save=*/false); }

TORCH_LIBRARY_IMPL(spikeforge, CompositeExplicitAutograd, library) { register_public<run_inference>(library); }
// torch.jit.trace records no argument of any type, and the transforms of torch.func do not see one that alone is mapped
// or differentiated: they get the other overloads.
TORCH_LIBRARY_IMPL(spikeforge, Tracer, library) { register_any<call_public>(library); }
TORCH_LIBRARY_IMPL(spikeforge, FuncTorchDynamicLayerFrontMode, library) { register_any<call_public>(library); }
TORCH_LIBRARY_IMPL(spikeforge, CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }
TORCH_LIBRARY_IMPL(spikeforge, Meta, library) { register_lowered<forward_meta, backward_meta>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
TORCH_LIBRARY_IMPL(spikeforge, CUDA, library) { register_lowered<forward_cuda, backward_cuda>(library); }
#endif

}  // namespace
}  // namespace spikeforge::ops
