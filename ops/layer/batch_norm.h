// A call of batch_norm_run. It is converted to a call of `run` with a neuron whose equations include the layer around
// it (graph/layer.h).
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

// Running statistics of a layer in training, which are updated towards those of its input, with the unbiased variance.
struct Running {
  at::Tensor mean, var, batches;   // batches, int64, counts the calls
  std::optional<double> momentum;  // nullopt: the means over all calls
  bool is_moved = false;           // already updated by the layer's launch
};

struct LayerCall {
  const char* op;  // the prefix of messages
  std::string_view neuron;
  at::TensorList inputs, states, params;
  at::Tensor weight, bias, mean, var, residual;  // undefined: none
  std::string_view residual_mode;
  std::int64_t channel_dim = 2;
  double eps = 1e-5;
  bool store_states = false;
  std::int64_t bits = 0;  // as in MultistepCall
  bool last_states = true;
  Running* running = nullptr;

  bool has_statistics() const { return mean.defined(); }
  std::optional<graph::Residual> joins() const {
    return residual.defined() ? graph::residual_of(residual_mode) : std::nullopt;
  }
  // Returns the tensors of the layer itself; those of the neuron are in lists.
  std::array<at::Tensor, 5> own() const { return {weight, bias, mean, var, residual}; }
};

// Throws TypeError and ValueError.
void check(const LayerCall& call);

// Returns the residual with this name. Throws ValueError for an unknown name.
graph::Residual residual_named(const char* op, std::string_view mode);

// Returns channel_dim counted from the front. Throws ValueError if the leader does not have it, or if it is time.
std::int64_t dim_of_channels(const Leader& leader, std::int64_t channel_dim);

// Returns mean and variance, computed by torch's operators, which every transform supports.
std::tuple<at::Tensor, at::Tensor> statistics_in_torch(const at::Tensor& x, std::int64_t channel_dim);

// Computes the statistics of the input through the dispatcher.
std::pair<at::Tensor, at::Tensor> call_channel_statistics(const at::Tensor& x, std::int64_t channel_dim);

// Returns the statistics for normalisation; 0 and 1 if the input has no elements.
std::pair<at::Tensor, at::Tensor> statistics_of_input(const at::Tensor& x, std::int64_t channel_dim);

// rstd = 1 / sqrt(var + eps), and scale = rstd times the weight.
struct Scale {
  at::Tensor rstd, scale;
};
Scale scale_of(const at::Tensor& var, const at::Tensor& weight, double eps);

// Returns the cell of a normalised neuron (graph::Layer).
std::shared_ptr<const TracedCell> layer_cell(std::string_view neuron, std::optional<graph::Residual> residual,
                                             bool with_statistics = false);

// The arguments of a call of layer_cell. Values per channel have x's number of dimensions.
struct LayerArguments {
  LayerArguments(const LayerCall& call, const at::Tensor& center, const at::Tensor& scale, const at::Tensor& shift);
  List inputs, params;
};

// The values per channel of a normalisation, with x's number of dimensions; center is the mean.
struct Numbers {
  at::Tensor center, scale, shift, rstd;
};

// The results of a call with the statistics of its input, and the values for its backward pass. `run` has the results
// of the layer_cell.
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

// Throws like check() of a LayerCall.
void check(const Running& running, const LayerCall& call);
// Updates the running statistics by torch's operators, if no launch has done so.
void move_running(Running& running, const LayerCall& call, const at::Tensor& mean, const at::Tensor& var);

// Compose the layer of the operators of `run`, through the dispatcher. Gradients are computed in one pass if they are
// differentiated.
LayerResults forward_of_parts(const LayerCall& call, bool save);
ByArgument backward_of_parts(const LayerBackward& layer, bool is_differentiated);

// Call the lowered operators through the dispatcher: one launch each on a GPU, if possible.
LayerResults call_layer_forward(const LayerCall& call, bool save);
ByArgument call_layer_backward(const LayerBackward& layer);

// Runs differentiable operators, with the call's statistics, or those of its input.
Results composed(const LayerCall& call);
// Runs calls that are not differentiated.
Results inference(const LayerCall& call);

at::Scalar numbers_of_a_channel(const at::Tensor& x, std::int64_t channel_dim);

// Reshapes values per channel [C] to x's number of dimensions.
at::Tensor beside(const at::Tensor& numbers, const at::Tensor& x, std::int64_t channel_dim);

// Returns a checked call, with the channel dimension counted from the front. Throws like check().
LayerCall checked_call(const char* op, std::string_view neuron, at::TensorList inputs, at::TensorList states,
                       at::TensorList params, const MaybeTensor& weight, const MaybeTensor& bias,
                       const MaybeTensor& mean, const MaybeTensor& var, const MaybeTensor& residual,
                       std::string_view residual_mode, std::int64_t channel_dim, double eps, bool store_states,
                       std::int64_t bits, bool last_states);

// Converts `run` to a kernel of batch_norm_run for the dispatcher.
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
