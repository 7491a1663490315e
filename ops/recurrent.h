// A recurrent layer over a sequence of steps: neurons whose output is fed back to them through a matrix, as one
// differentiable operator (docs/recurrent.md). The C++ interface of torch.ops.spikeforge.recurrent_run.
//
//   auto [spikes, states] = spikeforge::recurrent_run(lif, {x}, w, {}, {tau});
#pragma once

#include "csrc/base/export.h"
#include "ops/traced.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace spikeforge {

struct RecurrentOptions {
  std::optional<at::Tensor> spikes = std::nullopt;  // s before the first step: [delay, *batch, H]; nullopt: zeros
  std::int64_t into = 0;                            // the index of the input to which the feedback is added
  std::int64_t delay = 1;                           // in steps, at least 1
  bool store_states = false;
  std::optional<at::Tensor> lengths = std::nullopt;  // of samples (neuron.h)
  std::optional<at::Tensor> start = std::nullopt;    // restarts of samples; there is no feedback across them
};

// Runs a neuron with feedback: at each step t, s[t - delay] @ w is added to one of its inputs, where s is its first
// output. The inputs are [T, *batch, H], w is [H, H] of their type, w[i, j] from neuron i to neuron j; states,
// parameters and results are as for the neuron itself. The sum is rounded to the inputs' type before the neuron reads
// it.
//
// Differentiable once with respect to inputs, w, states, parameters and spikes, also in forward mode. Errors are
// c10::TypeError and c10::ValueError and name the operator and the argument.
SPIKEFORGE_API std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> recurrent_run(
    const Neuron& neuron, at::TensorList inputs, const at::Tensor& w, at::TensorList states = {},
    at::TensorList params = {}, const RecurrentOptions& options = {});

// Sparse connections between H neurons in CSR form: row i contains the connections from neuron i.
struct SparseConnections {
  at::Tensor weights;          // [connections] or [1], of the inputs' type, or a half type with float32
  at::Tensor indices, indptr;  // int32 [connections], the targets; int32 or int64 [H + 1]
  at::Tensor delays;           // uint8 or int32, [connections] or [1]: 1 to max_delay steps
  std::int64_t max_delay = 1;
  std::string_view values = "event";  // outputs above 0 count 1; "graded": their value; "number": all count
};

// The same with sparse connections and a delay for each of them (docs/recurrent.md). Of the options, `delay` is not
// used, and `spikes` are [max_delay, *batch, H]. Not differentiable in forward mode.
SPIKEFORGE_API std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> sparse_recurrent_run(
    const Neuron& neuron, at::TensorList inputs, const SparseConnections& connections, at::TensorList states = {},
    at::TensorList params = {}, const RecurrentOptions& options = {});

}  // namespace spikeforge
