// A call of batch_norm_run. It comes to a call of `run`: that of the neuron with its surroundings in its own equations
// (graph/layer.h).
#pragma once

#include <spikeforge/graph/layer.h>
#include <spikeforge/ops/common/checks.h>
#include <spikeforge/ops/common/text_call.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace spikeforge::ops::layers {

using traced::List;
using MaybeTensor = std::optional<at::Tensor>;
using Results = std::tuple<List, List, at::Tensor, at::Tensor>;

struct LayerCall {
  std::string_view neuron;
  at::TensorList inputs, states, params;
  at::Tensor weight, bias, mean, var, residual;  // undefined: none
  std::string_view residual_mode;
  std::int64_t channel_dim = 2;
  double eps = 1e-5;
  bool store_states = false;

  bool has_statistics() const { return mean.defined(); }
  // What stands besides the lists.
  std::array<at::Tensor, 5> own() const { return {weight, bias, mean, var, residual}; }
};

// Throws TypeError and ValueError.
void check(const LayerCall& call);

// channel_dim counted from the front. Throws ValueError for one that the leader does not have, or that is time.
std::int64_t dim_of_channels(const Leader& leader, std::int64_t channel_dim);

// Mean and variance by torch's operators, which every transform knows.
std::tuple<at::Tensor, at::Tensor> statistics_in_torch(const at::Tensor& x, std::int64_t channel_dim);

// Of the input where a call brings none, through the dispatcher.
std::pair<at::Tensor, at::Tensor> call_channel_statistics(const at::Tensor& x, std::int64_t channel_dim);

// 1 / sqrt(var + eps), and that times the weight.
struct Scale {
  at::Tensor rstd, scale;
};
Scale scale_of(const at::Tensor& var, const at::Tensor& weight, double eps);

// The neuron with what a call puts around it, and with_statistics of graph::Layer.
std::shared_ptr<const TracedCell> layer_cell(const LayerCall& call, bool with_statistics = false);

// A call of layer_cell; points into the lists.
struct LayerArguments {
  LayerArguments(const LayerCall& call, const at::Tensor& mean, const at::Tensor& scale, const at::Tensor& shift);
  List inputs, params;
};

// By operators that are all differentiable themselves, with the call's statistics, or those of its input.
Results composed(const LayerCall& call);

// A channel's numbers [C] beside x.
at::Tensor beside(const at::Tensor& numbers, const at::Tensor& x, std::int64_t channel_dim);

// A kernel of batch_norm_run for the dispatcher.
template <Results (*run)(const LayerCall&)>
Results kernel(std::string_view neuron, at::TensorList inputs, at::TensorList states, at::TensorList params,
               const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean, const MaybeTensor& var,
               const MaybeTensor& residual, std::string_view residual_mode, std::int64_t channel_dim, double eps,
               bool store_states) {
  const auto given = [](const MaybeTensor& t) { return t.value_or(at::Tensor()); };
  LayerCall call{neuron,     inputs,          states,        params,      given(weight), given(bias), given(mean),
                 given(var), given(residual), residual_mode, channel_dim, eps,           store_states};
  check(call);
  if (call.channel_dim < 0) call.channel_dim += call.inputs[0].dim();
  return run(call);
}

}  // namespace spikeforge::ops::layers
