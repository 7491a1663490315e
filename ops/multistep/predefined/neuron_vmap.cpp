#include "ops/common/library.h"
#include "ops/multistep/batched.h"
#include "ops/multistep/predefined/public_call.h"

namespace spikeforge::ops {
namespace {

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
}  // namespace spikeforge::ops
