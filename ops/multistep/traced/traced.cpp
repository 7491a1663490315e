#include "ops/traced.h"
#include "csrc/graph/text.h"
#include "ops/common/checks.h"
#include "ops/multistep/text_call.h"
#include "ops/multistep/traced/call_from_cpp.h"
#include "ops/multistep/traced/print_cuda.h"

#include <ATen/ops/empty.h>

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
  // One step needs no checkpoints.
  c10::SymDimVector shape(inputs[0].sym_sizes());
  shape[0] = 0;
  shape.insert(shape.begin() + 1, 0);
  call.checkpoints = at::empty_symint(shape, inputs[0].options().dtype(ops::state_type(inputs[0].scalar_type())));
  const ops::Tensors gradients = ops::call_run_backward(call);
  return {gradients.begin(), gradients.end()};
}

std::string Neuron::print_cuda(c10::ScalarType dtype) const { return ops::print_cuda(text_, dtype); }

}  // namespace spikeforge
