// The operators of online learning, besides `run` and a product; online_linear consists of them.
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

// The neuron's own derivatives over the steps of a call, by its last states v, from its first ones u:
//   transitions   ∂v_k / ∂u_l        [*batch, N], row after row
//   drives        ∂v_k / ∂x[t]       [T, *batch, N] for each k, x being the input `into`
//   param_drives  ∂v_k / ∂p          [*batch, N] for each k, for each parameter of `of_params`: its value is each
//                                    neuron's own there
using LocalJacobian = std::tuple<List, List, List>(std::string_view, at::TensorList, at::TensorList, at::TensorList,
                                                   std::int64_t, at::IntArrayRef);

// The state as it is; its gradient g [*batch, N] goes on to `leaf` also, by the trace ∂state / ∂leaf:
//   trace [*batch, N, I]              Σ g[b, n] trace[b, n, i]   of a leaf [N, I]
//   trace [*batch, I] with outer      Σ g[b, n] trace[b, i]      of a leaf [N, I]
//   trace [*batch, N] or [*batch, 1]  Σ g trace, summed to the leaf's shape
using WithEligibility = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);

// The gradient of a leaf [N, I] by a trace of synapses [*batch, N, I]. Traces have as many numbers as samples have
// synapses: they are read once.
using EligibilityGradient = at::Tensor(const at::Tensor&, const at::Tensor&);

// Throws ValueError and TypeError.
void check_gradient(const at::Tensor& grad, const at::Tensor& trace);
// On any device, and differentiable.
at::Tensor gradient_by_torch(const at::Tensor& grad, const at::Tensor& trace);

// The traces after the steps that transitions and drives are of:
//   e_k [*batch, N, I] = Σ_l transitions_kl e_l + Σ_t drives_k[t] x[t]
// No traces, which are zeros. Without x, drives are those of a parameter, and e is [*batch, N].
using AdvanceEligibility = List(at::TensorList, at::TensorList, at::TensorList, const std::optional<at::Tensor>&);

// Throws ValueError and TypeError.
void check_advance(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                   const std::optional<at::Tensor>& x);
// On any device.
List advance_by_torch(at::TensorList traces, at::TensorList transitions, at::TensorList drives,
                      const std::optional<at::Tensor>& x);

// The text of autodiff::response. Throws ValueError.
std::string response_text(std::string_view neuron, std::int64_t into);

}  // namespace spikeforge::ops::online
