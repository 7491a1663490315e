// Online learning: a layer of neurons after a matrix, whose gradients depend on past steps only through traces, so that
// memory does not grow with the number of steps (docs/online.md). The C++ interface of
// torch.ops.spikeforge.online_linear.
//
//   OnlineLayer now;                                          // states and traces, empty before the first step
//   for (x : pieces) {                                        // [T, *batch, I], T steps at once, most often 1
//     now = online_linear(lif, x, weight, bias, now.states, {tau}, now.traces);
//     loss(now.outputs[0]).backward();                        // adds to the gradients of weight, bias and tau
//   }
#pragma once

#include "csrc/base/export.h"
#include "ops/traced.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace spikeforge {

struct OnlineLayer {
  std::vector<at::Tensor> outputs;  // [T, *batch, N] each
  std::vector<at::Tensor> states;   // [*batch, N]
  std::vector<at::Tensor> traces;   // for the next call; none of them has a gradient
};

// The kinds of traces.
//
// e-prop (Bellec et al. 2020, "A solution to the learning dilemma for recurrent networks of spiking neurons"): a trace
// for each synapse, e = dv/dw: e[t] = ∂v[t]/∂v[t-1] e[t-1] + ∂v[t]/∂w, where both derivatives are local to the neuron.
// Exact for a single layer: the gradients of all pieces sum to those of backpropagation through time.
//
// OTTT (Xiao et al. 2022, "Online training through time for spiking neural networks"): a trace for each input: its
// effect on a neuron that does not fire (autodiff/jvp.h); the reset is not differentiated. The parameters
// are numbers or 0-dimensional.
enum class OnlineTraces : std::uint8_t { eprop, ottt };

struct OnlineOptions {
  OnlineTraces traces = OnlineTraces::eprop;
  std::int64_t into = 0;  // the index of the input to which x weight^T + bias is added
  // For a neuron with several inputs: one tensor for each, [T, *batch, N]. x weight^T + bias is added to that with the
  // index `into`.
  std::vector<at::Tensor> inputs = {};
  // The indices of parameters with traces under e-prop; by default those that require a gradient in this call.
  std::optional<std::vector<std::int64_t>> learned = std::nullopt;
};

// Runs a piece of a sequence. x is [T, *batch, I], weight [N, I], bias [N] or undefined; states and params are those of
// the neuron, states [*batch, N] or none. Gradients of this piece's outputs and states reach x, weight, bias and
// params; earlier pieces contribute through the traces only, and earlier x gets no gradient. The gradient of params is
// exact under e-prop, and that of this piece only under OTTT. Traces, in the states' type: under e-prop, for each
// state, [*batch, N, I], with a bias [*batch, N], and for each learned parameter [*batch, N]; under OTTT, for each
// state of the response, [*batch, I], and with a bias [*batch, 1].
//
// Errors are c10::TypeError and c10::ValueError and name the operator and the argument; c10::NotImplementedError for a
// neuron that draws random numbers.
SPIKEFORGE_API OnlineLayer online_linear(const Neuron& neuron, const at::Tensor& x, const at::Tensor& weight,
                                         const std::optional<at::Tensor>& bias = {}, at::TensorList states = {},
                                         at::TensorList params = {}, at::TensorList traces = {},
                                         const OnlineOptions& options = {});

}  // namespace spikeforge
