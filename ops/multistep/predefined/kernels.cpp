// The lowered operators on each device, and the public ones below autograd.
#include "ops/common/library.h"
#include "ops/multistep/predefined/public_call.h"

namespace spikeforge::ops {
namespace {

// Nothing will be differentiated, so nothing is saved.
MultistepResults run_inference(const MultistepCall& call) { return call_forward(call, /*save=*/false); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { register_public<run_inference>(library); }
// torch.jit.trace records no argument of any type, and the transforms of torch.func do not see one that alone is mapped
// or differentiated: they get the other overloads.
SPIKEFORGE_KERNELS(Tracer, library) { register_any<call_public>(library); }
SPIKEFORGE_KERNELS(FuncTorchDynamicLayerFrontMode, library) { register_any<call_public>(library); }
SPIKEFORGE_KERNELS(CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }
SPIKEFORGE_KERNELS(Meta, library) { register_lowered<forward_meta, backward_meta>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { register_lowered<forward_cuda, backward_cuda>(library); }
#endif

}  // namespace
}  // namespace spikeforge::ops
