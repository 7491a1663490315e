// The operators' public contract, and what runs where nothing is differentiated.
#include <spikeforge/ops/traced/arguments.h>

#include <torch/library.h>

namespace spikeforge::ops {
namespace {

// `neuron` is neuron text (docs/neuron_text.md). inputs are [T, *shape]; states, [] for the neuron's constants, and the
// states returned are [*shape], or with store_states sequences [T, *shape]; params broadcast against shape. print_cuda
// gives the source of the kernels that a GPU would run for inputs of a type.
//
// None is an empty list for run_forward: a package of AOTInductor (torch 2.11) passes it where a list was empty.
TORCH_LIBRARY_FRAGMENT(spikeforge, library) {
  const auto define = [&library](const char* schema) { library.def(schema, {at::Tag::pt2_compliant_tag}); };
  define(
      "run(str neuron, Tensor[] inputs, Tensor[] states, Tensor[] params, *, bool store_states=False) -> "
      "(Tensor[] outputs, Tensor[] states)");
  define(
      "run_forward(str neuron, Tensor[] inputs, Tensor[]? states, Tensor[]? params, *, bool store_states, "
      "bool save) -> (Tensor[] outputs, Tensor[] states, Tensor[] checkpoints)");
  define(
      "run_backward(str neuron, Tensor?[] grad_outputs, Tensor?[] grad_states, Tensor[] inputs, Tensor[] states, "
      "Tensor[] params, Tensor[] checkpoints, bool[] needs_grad, *, bool store_states) -> Tensor[]");
  define("print_cuda(str neuron, ScalarType dtype) -> str");
}

traced::Outputs run_inference(std::string_view neuron, at::TensorList inputs, at::TensorList states,
                              at::TensorList params, bool store_states) {
  const TracedArguments args{neuron, inputs, states, params, store_states};
  check_strided(args);
  TracedResults results = call_forward(args, /*save=*/false);
  return {std::move(results.outputs), std::move(results.states)};
}

TORCH_LIBRARY_IMPL(spikeforge, CompositeExplicitAutograd, library) { library.impl("run", TORCH_FN(run_inference)); }

}  // namespace
}  // namespace spikeforge::ops
