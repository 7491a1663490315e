// The operators' public contract, and their kernels below autograd.
#include "ops/common/library.h"
#include "ops/multistep/text_call.h"

namespace spikeforge::ops {
namespace {

// `neuron` is neuron text (docs/neuron_text.md). inputs are [T, *shape]; states, [] for the neuron's constants, and the
// returned states are [*shape], or with store_states sequences [T, *shape]; params broadcast against shape. lengths,
// one for each sample, and start [T, B] are as in ops/multistep/samples.h. print_cuda returns the source of the kernels
// that a GPU would run for inputs of a type. With `bits`, 1 or 4, the first output is also recorded in that many bits a
// number for the backward passes of products that read it; run_forward returns them, and whether all numbers fit, after
// the checkpoints. With scan, for a neuron whose next states are affine in its states, steps may run in parallel, with
// another rounding. `seed` and `offset`, int64 of one element, set the draws of a neuron that draws random numbers: by
// default the generator of x's device gives a seed, and the first step is 0. So torch.compile treats `run` as a random
// operator, and the lowered operators, which always receive a seed, as deterministic ones.
//
// run_forward takes inputs, states and params as one list that is never empty: a package of AOTInductor (torch 2.11)
// passes None for an empty list, and the dispatcher does not read the keys of a list that may be None.
SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "run(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, *, bool store_states=False, int bits=0, "
      "Tensor? lengths=None, Tensor? start=None, bool scan=False, Tensor? seed=None, Tensor? offset=None) -> "
      "(Tensor[] outputs, Tensor[] states)",
      {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded});
  library.def(
      "run_forward(str neuron, Tensor[] arguments, *, bool store_states, bool save, int bits=0, Tensor? lengths=None, "
      "Tensor? start=None, bool scan=False, Tensor? seed=None, Tensor? offset=None) -> (Tensor[] outputs, Tensor[] "
      "states, Tensor[] checkpoints)");
  library.def(
      "run_backward(str neuron, Tensor?[] grad_outputs, Tensor?[] grad_states, Tensor[] inputs, Tensor[] states, "
      "Tensor[] params, Tensor[] checkpoints, bool[] needs_grad, *, bool store_states, Tensor? lengths=None, Tensor? "
      "start=None, Tensor? seed=None, Tensor? offset=None) -> Tensor[]");
  library.def(
      "neuron_text(str neuron, str spike, str[] params, str[] names, float[] numbers, *, str name='', bool "
      "detach_reset=False, bool decay_input=True, bool divides=False) -> str");
  library.def("print_cuda(str neuron, ScalarType dtype) -> str");
  library.def("text_on_a_line(str neuron) -> str");
}

// Nothing will be differentiated, so nothing is saved.
MultistepResults run_inference(const MultistepCall& call) { return call_run_forward(with_seed(call), /*save=*/false); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_inference>));
}

// Reports a call without any tensor, for which there is no other kernel.
SPIKEFORGE_KERNELS(Undefined, library) { library.impl("run", TORCH_FN(traced::run_kernel<run_inference>)); }

template <MultistepResults (*forward)(const MultistepCall&, bool), Tensors (*backward)(const BackwardCall&)>
void register_lowered_run(torch::Library& library) {
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward>));
}

SPIKEFORGE_KERNELS(CPU, library) { register_lowered_run<forward_cpu, backward_cpu>(library); }
SPIKEFORGE_KERNELS(Meta, library) { register_lowered_run<forward_meta, backward_meta>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { register_lowered_run<forward_cuda, backward_cuda>(library); }
#endif

}  // namespace
}  // namespace spikeforge::ops
