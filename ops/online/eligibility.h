// The operators of online learning, in addition to `run` and a product; online_linear consists of them.
#pragma once

#include "ops/multistep/text_call.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace spikeforge::ops::online {

using traced::List;

// The derivatives of a neuron over the steps of a call, from its first states u to its last states v:
//   transitions   ∂v_k / ∂u_l        [*batch, N], row after row
//   drives        ∂v_k / ∂x[t]       [T, *batch, N] for each k, x being the input `into`
//   param_drives  ∂v_k / ∂p          [*batch, N] for each k, for each parameter of `of_params`, which is treated
//                                    as a separate value for each neuron
using LocalJacobian = std::tuple<List, List, List>(std::string_view, at::TensorList, at::TensorList, at::TensorList,
                                                   std::int64_t, at::IntArrayRef);

// Returns the state unchanged. In the backward pass, its gradient g [*batch, N] also adds to the gradient of `leaf`,
// through the trace ∂state / ∂leaf:
//   trace [*batch, N, I]              Σ g[b, n] trace[b, n, i]   of a leaf [N, I]
//   trace [*batch, I] with outer      Σ g[b, n] trace[b, i]      of a leaf [N, I]
//   trace [*batch, N] or [*batch, 1]  Σ g trace, summed to the leaf's shape
using WithEligibility = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);

// The gradient of a leaf [N, I] through traces of synapses [*batch, N, I]. Traces are large, one value for each synapse
// and sample, so they are read once.
using EligibilityGradient = at::Tensor(const at::Tensor&, const at::Tensor&);

// Throws ValueError and TypeError.
void check_gradient(const at::Tensor& grad, const at::Tensor& trace);
// Computes it on any device, differentiably.
at::Tensor gradient_by_torch(const at::Tensor& grad, const at::Tensor& trace);

// Returns the traces after the steps of transitions and drives:
//   e_k [*batch, N, I] = Σ_l transitions_kl e_l + Σ_t drives_k[t] x[t]
// An empty list of traces means zeros. Without x, drives are those of a parameter, and e is [*batch, N].
using AdvanceEligibility = List(at::TensorList, at::TensorList, at::TensorList, const std::optional<at::Tensor>&);

// Throws ValueError and TypeError.
void check_advance(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                   const std::optional<at::Tensor>& x);
// Computes it on any device.
List advance_by_torch(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                      const std::optional<at::Tensor>& x);

// Returns the text of autodiff::response. Throws ValueError.
std::string response_text(std::string_view neuron, std::int64_t into);

}  // namespace spikeforge::ops::online
