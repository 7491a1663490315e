// The kernels of the public and lowered operators: on each device, below autograd, of autograd and of torch.vmap.
#include "ops/common/library.h"
#include "ops/multistep/autograd.h"
#include "ops/multistep/batched.h"
#include "ops/multistep/predefined/public_call.h"

namespace spikeforge::ops {
namespace {

// Runs a call that is not differentiated, so nothing is saved.
MultistepResults run_inference(const MultistepCall& call) { return call_forward(call, /*save=*/false); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) { register_public<run_inference>(library); }
// torch.jit.trace does not record arguments of type Any, and the transforms of torch.func ignore such an argument if
// only it is mapped or differentiated. They are redirected to the other overloads.
SPIKEFORGE_KERNELS(Tracer, library) { register_any<call_public>(library); }
SPIKEFORGE_KERNELS(FuncTorchDynamicLayerFrontMode, library) { register_any<call_public>(library); }
SPIKEFORGE_KERNELS(CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }
SPIKEFORGE_KERNELS(Meta, library) { register_lowered<forward_meta, backward_meta>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { register_lowered<forward_cuda, backward_cuda>(library); }
#endif

constexpr Lowered lowered_neuron{call_forward, call_backward};

MultistepResults call_checked(const MultistepCall& call) {
  // Scalars are checked here, because the operator does not check them after they become tensors.
  for (std::size_t j = 0; j < call.cell->params.size(); ++j)
    if (!call.param(j).defined()) check_number(call.op_name(), call.cell->params[j], call.numbers[j]);
  return call_public(call);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  register_public<run_autograd<lowered_neuron>>(library);
  register_lowered<forward_autograd<lowered_neuron>, backward_autograd<lowered_neuron>>(library);
}

// ---- torch.vmap ----

MultistepResults run_mapped(const MultistepCall& call) { return run_batched(call, call_public); }
MultistepResults forward_mapped(const MultistepCall& call, bool save) {
  return forward_batched(call, save, call_forward);
}
Tensors backward_mapped(const BackwardCall& call) { return backward_batched(call, call_backward); }

template <NeuronKind kind> void refuse_batched(const c10::OperatorHandle&, torch::jit::Stack*) {
  refuse_batched_gradients(predefined_cell(kind).backward_op);
}

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  register_public<run_mapped>(library);
  register_lowered<forward_mapped, backward_mapped>(library);
}

SPIKEFORGE_KERNELS(Batched, library) {
  for_each_neuron([&]<NeuronKind kind>() {
    library.impl(predefined_cell(kind).backward_op.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<refuse_batched<kind>>());
  });
}

}  // namespace

MultistepResults call_from_cpp(const MultistepCall& call) { return call_at_once<lowered_neuron>(call, call_checked); }

}  // namespace spikeforge::ops
