// A call of batch_norm_run. It comes to a call of `run`: that of the neuron with its surroundings in its own equations
// (graph/layer.h).
#pragma once

#include "csrc/graph/layer.h"
#include "ops/common/checks.h"
#include "ops/multistep/derivatives.h"
#include "ops/multistep/text_call.h"

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

inline constexpr const char* batch_norm_op = "batch_norm_run";
inline constexpr const char* tracked_op = "batch_norm_run_tracked";

// Running statistics of a layer in training, which move towards those of its input: the variance's is divided by one
// less.
struct Running {
  at::Tensor mean, var, batches;   // batches, int64, counts the calls
  std::optional<double> momentum;  // none: they are the means over all calls
  bool is_moved = false;           // by the layer's own launch
};

struct LayerCall {
  const char* op;  // as messages begin
  std::string_view neuron;
  at::TensorList inputs, states, params;
  at::Tensor weight, bias, mean, var, residual;  // undefined: none
  std::string_view residual_mode;
  std::int64_t channel_dim = 2;
  double eps = 1e-5;
  bool store_states = false;
  std::int64_t bits = 0;  // as MultistepCall has it
  bool last_states = true;
  Running* running = nullptr;

  bool has_statistics() const { return mean.defined(); }
  std::optional<graph::Residual> joins() const {
    return residual.defined() ? graph::residual_of(residual_mode) : std::nullopt;
  }
  // The tensors that are not in lists.
  std::array<at::Tensor, 5> own() const { return {weight, bias, mean, var, residual}; }
};

// Throws TypeError and ValueError.
void check(const LayerCall& call);

// Throws ValueError for no residual_mode.
graph::Residual residual_named(const char* op, std::string_view mode);

// channel_dim counted from the front. Throws ValueError for one that the leader does not have, or that is time.
std::int64_t dim_of_channels(const Leader& leader, std::int64_t channel_dim);

// Mean and variance by torch's operators, which every transform supports.
std::tuple<at::Tensor, at::Tensor> statistics_in_torch(const at::Tensor& x, std::int64_t channel_dim);

// The statistics of the input if a call has none, through the dispatcher.
std::pair<at::Tensor, at::Tensor> call_channel_statistics(const at::Tensor& x, std::int64_t channel_dim);

// The statistics by which a layer normalises; 0 and 1 if the input has no elements.
std::pair<at::Tensor, at::Tensor> statistics_of_input(const at::Tensor& x, std::int64_t channel_dim);

// 1 / sqrt(var + eps), and that times the weight.
struct Scale {
  at::Tensor rstd, scale;
};
Scale scale_of(const at::Tensor& var, const at::Tensor& weight, double eps);

// A normalised neuron, as graph::Layer has it.
std::shared_ptr<const TracedCell> layer_cell(std::string_view neuron, std::optional<graph::Residual> residual,
                                             bool with_statistics = false);

// The arguments of a call of layer_cell; numbers per channel have x's dimensions.
struct LayerArguments {
  LayerArguments(const LayerCall& call, const at::Tensor& center, const at::Tensor& scale, const at::Tensor& shift);
  List inputs, params;
};

// The numbers of channels that a normalisation comes to, beside x; center is the mean.
struct Numbers {
  at::Tensor center, scale, shift, rstd;
};

// A call with the statistics of its own input: its results, and the values for its backward pass. `run` is that of the
// layer_cell.
struct LayerResults {
  MultistepResults run;
  at::Tensor mean, var;
  Numbers numbers;
};

// `run` is the call of the layer_cell with the scalars of the forward pass; weight and bias, [C], replace scale and
// shift in needs_grad and among the gradients.
struct LayerBackward {
  BackwardCall run;
  std::string_view neuron;
  std::optional<graph::Residual> residual;
  at::Tensor rstd, grad_mean, grad_var;  // undefined if there is no gradient
  std::int64_t channel_dim = 2;

  std::size_t mean_at() const { return run.cell->arguments() - 3; }
  std::size_t scale_at() const { return mean_at() + 1; }
  std::size_t shift_at() const { return mean_at() + 2; }
};

// Throws as check() does.
void check(const Running& running, const LayerCall& call);
// Updates the running statistics by torch's operators, if no launch has done so.
void move_running(Running& running, const LayerCall& call, const at::Tensor& mean, const at::Tensor& var);

// Composed of run's operators, through the dispatcher; the gradients in one pass if they are differentiated.
LayerResults forward_of_parts(const LayerCall& call, bool save);
ByArgument backward_of_parts(const LayerBackward& layer, bool is_differentiated);

// Through the dispatcher: in one launch each on a GPU, where that can be.
LayerResults call_layer_forward(const LayerCall& call, bool save);
ByArgument call_layer_backward(const LayerBackward& layer);

// Composed of differentiable operators, with the call's statistics, or those of its input.
Results composed(const LayerCall& call);
// For calls that are not differentiated.
Results inference(const LayerCall& call);

at::Scalar numbers_of_a_channel(const at::Tensor& x, std::int64_t channel_dim);

// A channel's numbers [C] beside x.
at::Tensor beside(const at::Tensor& numbers, const at::Tensor& x, std::int64_t channel_dim);

// With the channel's dimension counted from the front. Throws as check() does.
LayerCall checked_call(const char* op, std::string_view neuron, at::TensorList inputs, at::TensorList states,
                       at::TensorList params, const MaybeTensor& weight, const MaybeTensor& bias,
                       const MaybeTensor& mean, const MaybeTensor& var, const MaybeTensor& residual,
                       std::string_view residual_mode, std::int64_t channel_dim, double eps, bool store_states,
                       std::int64_t bits, bool last_states);

// A kernel of batch_norm_run for the dispatcher.
template <Results (*run)(const LayerCall&)>
Results kernel(std::string_view neuron, at::TensorList inputs, at::TensorList states, at::TensorList params,
               const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean, const MaybeTensor& var,
               const MaybeTensor& residual, std::string_view residual_mode, std::int64_t channel_dim, double eps,
               bool store_states, std::int64_t bits, bool last_states) {
  return run(checked_call(batch_norm_op, neuron, inputs, states, params, weight, bias, mean, var, residual,
                          residual_mode, channel_dim, eps, store_states, bits, last_states));
}

// The kernels of batch_norm_run_tracked.
template <Results (*run)(const LayerCall&)>
std::tuple<List, List> tracked_kernel(std::string_view neuron, at::TensorList inputs, at::TensorList states,
                                      at::TensorList params, const at::Tensor& running_mean,
                                      const at::Tensor& running_var, const at::Tensor& num_batches_tracked,
                                      const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& residual,
                                      std::string_view residual_mode, std::int64_t channel_dim, double eps,
                                      std::optional<double> momentum, bool store_states, std::int64_t bits,
                                      bool last_states) {
  LayerCall call =
      checked_call(tracked_op, neuron, inputs, states, params, weight, bias, /*mean=*/std::nullopt,
                   /*var=*/std::nullopt, residual, residual_mode, channel_dim, eps, store_states, bits, last_states);
  Running running{running_mean, running_var, num_batches_tracked, momentum};
  check(running, call);
  call.running = &running;
  const auto [outputs, last, mean, var] = run(call);
  move_running(running, call, mean, var);
  return {outputs, last};
}

}  // namespace spikeforge::ops::layers
