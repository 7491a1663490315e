// The schemas of the operators, and their kernels below autograd.
#include "ops/common/library.h"
#include "ops/recurrent.h"
#include "ops/recurrent/call.h"

namespace spikeforge::ops::recurrent {
namespace {

// inputs are [T, *batch, H] and w [H, H]; `spikes` [delay, *batch, H] are those before the first step. The other
// arguments are those of `run`. In the lowered operators, `arguments` are inputs, states and params. With `save`,
// `saved` contains the currents, which replace inputs[into] in the backward pass, and the checkpoints. `grads` are the
// gradients of outputs and states.
SPIKEFORGE_SCHEMAS(library) {
  library.def(
      "recurrent_run(str neuron, Tensor[] inputs, Tensor w, Tensor[] states, Tensor[] params, Tensor? spikes=None, *, "
      "int into=0, int delay=1, bool store_states=False, Tensor? lengths=None, Tensor? start=None) -> (Tensor[] "
      "outputs, Tensor[] states)");
  library.def(
      "recurrent_run_forward(str neuron, Tensor[] arguments, Tensor w, Tensor? spikes, *, int into, int delay, "
      "bool store_states, bool save, Tensor? lengths=None, Tensor? start=None) -> (Tensor[] outputs, Tensor[] states, "
      "Tensor[] saved)");
  library.def(
      "recurrent_run_backward(str neuron, Tensor?[] grads, Tensor[] arguments, Tensor w, Tensor checkpoints, "
      "bool[] needs_grad, *, int into, int delay, bool store_states, Tensor? lengths=None, Tensor? start=None) -> "
      "Tensor[]");
}

// Runs a call that is not differentiated, so nothing is saved.
RecurrentResults run_inference(const RecurrentCall& call) { return call_forward(call, /*save=*/false); }

SPIKEFORGE_KERNELS(CompositeExplicitAutograd, library) {
  library.impl("recurrent_run", TORCH_FN(run_kernel<run_inference>));
}

// Handles a call without any tensor, for which there is no other kernel, so that it raises an error.
SPIKEFORGE_KERNELS(Undefined, library) { library.impl("recurrent_run", TORCH_FN(run_kernel<run_inference>)); }

template <RecurrentResults (*forward)(const RecurrentCall&, bool), Tensors (*backward)(const RecurrentBackwardCall&)>
void register_lowered(torch::Library& library) {
  library.impl("recurrent_run_forward", TORCH_FN(forward_kernel<forward>));
  library.impl("recurrent_run_backward", TORCH_FN(backward_kernel<backward>));
}

SPIKEFORGE_KERNELS(CPU, library) { register_lowered<forward_cpu, backward_cpu>(library); }
SPIKEFORGE_KERNELS(Meta, library) { register_lowered<forward_meta, backward_meta>(library); }
#if defined(SPIKEFORGE_WITH_CUDA)
SPIKEFORGE_KERNELS(CUDA, library) { register_lowered<forward_cuda, backward_cuda>(library); }
#endif

}  // namespace
}  // namespace spikeforge::ops::recurrent

namespace spikeforge {

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> recurrent_run(const Neuron& neuron, at::TensorList inputs,
                                                                           const at::Tensor& w, at::TensorList states,
                                                                           at::TensorList params,
                                                                           const RecurrentOptions& options) {
  static const auto handle = ops::find_operator<ops::recurrent::Run>("spikeforge::recurrent_run");
  return handle.call(neuron.text(), inputs, w, states, params, options.spikes, options.into, options.delay,
                     options.store_states, options.lengths, options.start);
}

}  // namespace spikeforge
