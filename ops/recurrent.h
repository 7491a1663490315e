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

}  // namespace spikeforge
