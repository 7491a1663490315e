#include "ops/traced.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/typical_kernels.h"
#include "csrc/kernels/multistep/written_step.h"
#include "ops/common/checks.h"
#include "ops/common/library.h"
#include "ops/multistep/text_call.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace spikeforge::ops {
namespace {

std::string neuron_text(std::string_view neuron, std::string_view spike, const std::vector<std::string>& params,
                        const std::vector<std::string>& names, at::ArrayRef<double> numbers, std::string_view name,
                        bool detach_reset, bool decay_input, bool divides) {
  TORCH_CHECK_VALUE(names.size() == numbers.size(), "neuron_text(", neuron, "): names must be as many as numbers, but ",
                    names.size(), " names have ", numbers.size(), " numbers");
  NeuronDescription described{.neuron = std::string(neuron),
                              .name = std::string(name.empty() ? neuron : name),
                              .spike = std::string(spike),
                              .params = params,
                              .numbers = {},
                              .detach_reset = detach_reset,
                              .decay_input = decay_input,
                              .divides = divides};
  for (std::size_t i = 0; i < names.size(); ++i) described.numbers.emplace_back(names[i], numbers[i]);
  try {
    return graph::print(trace_neuron(described));
  } catch (const graph::GraphError& error) {
    TORCH_CHECK_VALUE(false, "neuron_text(", neuron, "): ", error.what());
  }
}

// Returns the CUDA source of the kernels of a typical call with inputs of this type.
std::string print_cuda(std::string_view neuron, c10::ScalarType dtype) {
  const std::shared_ptr<const TracedCell> held = cell_of(neuron, "print_cuda");
  const TracedCell& cell = *held;
  TORCH_CHECK_TYPE(is_supported(dtype), "print_cuda(", cell.name,
                   "): dtype must be float16, bfloat16, float32 or float64, but is ", dtype);
  TORCH_CHECK_VALUE(!cell.is_too_long(), "print_cuda(", cell.name, "): ", cell.why_too_long());
  return kernels::print_cuda(cell, {.type = dtype_of(dtype)});
}

std::string text_on_a_line(std::string_view neuron) { return graph::on_a_line(neuron); }

SPIKEFORGE_KERNELS(CompositeImplicitAutograd, library) {
  library.impl("neuron_text", TORCH_FN(neuron_text));
  library.impl("print_cuda", TORCH_FN(print_cuda));
  library.impl("text_on_a_line", TORCH_FN(text_on_a_line));
}

}  // namespace
}  // namespace spikeforge::ops

namespace spikeforge {

Neuron::Neuron(std::string text) : text_(std::move(text)), cell_(ops::cell_of(text_, "Neuron")) {}

Neuron::Neuron(const graph::Cell& cell) : Neuron(graph::print(cell)) {}

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> Neuron::operator()(
    at::TensorList inputs, at::TensorList states, at::TensorList params, bool store_states, bool scan,
    const std::optional<at::Tensor>& lengths, const std::optional<at::Tensor>& start,
    const std::optional<at::Tensor>& seed, const std::optional<at::Tensor>& offset) const {
  ops::MultistepCall call = ops::traced_call(text_, inputs, states, params, store_states, /*bits=*/0, scan);
  ops::set_samples(call, lengths, start);
  ops::set_draws(call, seed, offset);
  ops::check_dense(call);
  return ops::traced::outputs_of(ops::call_run_from_cpp(call));
}

std::vector<at::Tensor> Neuron::input_gradients(at::TensorList inputs, at::TensorList params,
                                                at::TensorList grad_outputs, const std::vector<bool>& wanted) const {
  ops::BackwardCall call;
  static_cast<ops::MultistepCall&>(call) =
      ops::traced_call(text_, inputs, /*states=*/{}, params, /*store_states=*/false);
  call.grad_outputs = grad_outputs;
  for (const bool is_wanted : wanted) call.needs_grad.push_back(is_wanted);
  call.needs_grad.append(params.size(), false);
  // A single step needs no checkpoints.
  c10::SymDimVector shape(inputs[0].sym_sizes());
  shape[0] = 0;
  shape.insert(shape.begin() + 1, 0);
  call.checkpoints = at::empty_symint(shape, inputs[0].options().dtype(ops::state_type(inputs[0].scalar_type())));
  const ops::Tensors gradients = ops::call_run_backward(call);
  return {gradients.begin(), gradients.end()};
}

std::string Neuron::print_cuda(c10::ScalarType dtype) const { return ops::print_cuda(text_, dtype); }

}  // namespace spikeforge
