// The operators' public contract and their kernels: below autograd, of autograd and of torch.vmap.
#include "ops/common/library.h"
#include "ops/multistep/autograd.h"
#include "ops/multistep/batched.h"
#include "ops/multistep/text_call.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

// `neuron` is neuron text (docs/neuron_text.md). inputs are [T, *shape]; states, [] for the neuron's constants, and the
// returned states are [*shape], or with store_states sequences [T, *shape]; params broadcast against shape. lengths,
// one for each sample, and start [T, B] are as in ops/multistep/samples.h. print_cuda returns the source of the kernels
// that a GPU would run for inputs of a type. With `bits`, 1 or 4, the first output is also packed with that number of
// bits per element for the backward passes of products that read it; run_forward returns the bits, and a flag that is
// true if all values fit, after the checkpoints. With scan, for a neuron whose next states are affine in its states,
// steps may run in parallel, with different rounding. `seed` and `offset`, int64 of one element, set the draws of a
// neuron that draws random numbers: by default the seed is drawn from the generator of x's device, and the first step
// is 0. So torch.compile treats `run` as a random operator, and the lowered operators, which always receive a seed, as
// deterministic ones.
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

// Runs a call that is not differentiated, so nothing is saved.
MultistepResults run_inference(const MultistepCall& call) { return call_run_forward(with_seed(call), /*save=*/false); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_inference>));
}

// Handles a call without any tensor, for which there is no other kernel, so that it raises an error.
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

constexpr Lowered lowered_run{call_run_forward, call_run_backward};

MultistepResults run_with_seed(const MultistepCall& call) {
  return run_autograd<lowered_run>(needs_seed(call) ? with_seed(call) : call);
}

SPIKEFORGE_KERNELS(Autograd, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<run_with_seed>));
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<forward_autograd<lowered_run>>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<backward_autograd<lowered_run>>));
}

// ---- torch.vmap ----

// Returns the call with a seed. If none is given, torch.vmap's generator supplies one according to its `randomness`: an
// error; a different seed for each map, of which one is sufficient, because maps draw as neurons of one call; or the
// same seed.
MultistepCall with_seed_of_maps(const MultistepCall& call) {
  MultistepCall seeded = with_seed(call);
  if (call.seed.defined() || !seeded.seed.defined()) return seeded;
  const auto* const batched = at::functorch::maybeGetBatchedImpl(seeded.seed);
  TORCH_CHECK_NOT_IMPLEMENTED(
      batched != nullptr, call.cell->forward_op,
      ": torch.vmap with randomness=\"same\" is not supported: the maps draw different numbers, "
      "as neurons of one call");
  seeded.seed = batched->value().select(batched->bdim(), 0);
  return seeded;
}

MultistepResults map_run(const MultistepCall& call) { return run_batched(with_seed_of_maps(call), call_run); }
MultistepResults map_run_forward(const MultistepCall& call, bool save) {
  return forward_batched(call, save, call_run_forward);
}
Tensors map_run_backward(const BackwardCall& call) { return backward_batched(call, call_run_backward); }

void refuse_batched_run(const c10::OperatorHandle&, torch::jit::Stack*) { refuse_batched_gradients("run_backward"); }

SPIKEFORGE_KERNELS(FuncTorchBatched, library) {
  library.impl("run", TORCH_FN(traced::run_kernel<map_run>));
  library.impl("run_forward", TORCH_FN(traced::forward_kernel<map_run_forward>));
  library.impl("run_backward", TORCH_FN(traced::backward_kernel<map_run_backward>));
}

SPIKEFORGE_KERNELS(Batched, library) {
  library.impl("run_backward", torch::CppFunction::makeFromBoxedFunction<refuse_batched_run>());
}

}  // namespace

MultistepResults call_run_from_cpp(const MultistepCall& call) {
  return needs_seed(call) ? call_run(call) : call_at_once<lowered_run>(call, call_run);
}

}  // namespace spikeforge::ops
