// Layers around a neuron: the C++ interface of torch.ops.spikeforge.batch_norm_run, channel_statistics, linear,
// convolution, delayed_linear, max_pool2d and avg_pool2d. docs/layers.md describes all arguments.
//
//   auto [spikes, states, mean, var] =
//       spikeforge::batch_norm_run(lif, {x}, {}, {tau}, {.weight = bn->weight, .bias = bn->bias});
//
// All functions run on CPU and GPU and are differentiable. Errors are c10::TypeError and c10::ValueError and name the
// operator and the argument.
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

// y = (x - mean) / sqrt(var + eps) * weight + bias. The tensors are [C], of x's type, or float32 for half types.
struct BatchNorm {
  std::optional<at::Tensor> weight = std::nullopt, bias = std::nullopt;  // nullopt: 1 and 0
  // Both are given, as in evaluation, or neither: then they are computed from the input, over time, batch and space.
  std::optional<at::Tensor> mean = std::nullopt, var = std::nullopt;
  std::int64_t channel_dim = 2;  // of x [T, B, C, ...]; any dimension except time
  double eps = 1e-5;
};

// A residual connection with a tensor r of the shape and type of the first input and the first output s: "add" s + r,
// "and" s r, "iand" (1 - s) r. "membrane" adds r to the normalised input; the sum is an additional, last output.
struct ResidualConnection {
  at::Tensor tensor;
  std::string_view mode = "add";
};

// Normalises the neuron's first input, runs the neuron, and combines its first output with a residual, with no more
// passes over memory than the neuron alone. Statistics of the input need one more pass, and only the input is saved for
// the backward pass. Returns outputs and states as the neuron does, and the mean and the (biased) variance that were
// used. With last_states = false, which requires store_states = false, the list of states is empty, and none are
// written on a GPU.
SPIKEFORGE_API std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, at::Tensor, at::Tensor> batch_norm_run(
    const Neuron& neuron, at::TensorList inputs, at::TensorList states = {}, at::TensorList params = {},
    const BatchNorm& norm = {}, const std::optional<ResidualConnection>& residual = std::nullopt,
    bool store_states = false, bool last_states = true);

// Returns the mean and the biased variance [C] of x's channels, in float32 for half types. They have the same bits in
// every call.
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> channel_statistics(const at::Tensor& x, std::int64_t channel_dim = 2);

// ---- products of spikes that save bits for the backward pass instead of x ----
//
// x contains 0 and 1, or with bits = 4 integers up to 15. If the gradient of the weight is needed, other values throw
// ValueError on a CPU, and make that gradient NaN on a GPU. With bits = 0, x itself is saved, and may have any values.
// With `recompute`, a batch_norm_run that reads the product, or a view of it, does not save it: the backward pass
// recomputes it.

// A linear layer: x [..., in], weight [out, in], bias [out].
SPIKEFORGE_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias = std::nullopt, std::int64_t bits = 1,
                                 bool recompute = false);

// Lists have one entry for each dimension of space, or one for all.
struct ConvolutionOptions {
  std::vector<std::int64_t> stride{1}, padding{0}, dilation{1};
  std::int64_t groups = 1;
  std::int64_t bits = 1;
  bool recompute = false;
};

// A convolution: x [N, in, *space], weight [out, in / groups, *kernel], bias [out], with 1 to 3 dimensions of space.
SPIKEFORGE_API at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                                      const std::optional<at::Tensor>& bias = std::nullopt,
                                      const ConvolutionOptions& options = {});

// ---- learned delays ----

struct DelayedLinearOptions {
  std::optional<at::Tensor> bias = std::nullopt;  // [O]
  std::string_view interpolation = "linear";  // how a delay that is not whole is spread over steps; "triangle", "gauss"
  double width = 0.5;                         // the width of triangle and gauss, in steps
  std::optional<at::Tensor> past =
      std::nullopt;  // the inputs of the previous max_delay steps [max_delay, *batch, I]; nullopt: 0
};

// Computes y[t] = Σ_i weight[o, i] x[t - delay[o, i], i] + bias[o]: x [T, *batch, I], weight [O, I], delay [O, I] or,
// one for each input, [I], from 0 to max_delay steps (at most 4096), which need not be integers: docs/delays.md
// describes how they are distributed over whole steps. Differentiable once with respect to all tensors. Except for the
// past inputs, memory does not grow with max_delay.
SPIKEFORGE_API at::Tensor delayed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                                         std::int64_t max_delay, const DelayedLinearOptions& options = {});

// ---- pooling of sequences ----

// Each list has one element, or height and width.
struct MaxPool2d {
  std::vector<std::int64_t> kernel_size, stride{}, padding{0}, dilation{1};  // an empty stride means kernel_size
  bool ceil_mode = false;
  // The weight [C] of a normalisation that follows. If it is below 0, a window returns its minimum, which that
  // normalisation maps to the maximum.
  std::optional<at::Tensor> weight = std::nullopt;
};
struct AvgPool2d {
  std::vector<std::int64_t> kernel_size, stride{}, padding{0};
  bool ceil_mode = false;
  bool count_include_pad = true;
  std::optional<std::int64_t> divisor_override = std::nullopt;
};

// Pool images x [..., C, H, W] with any dimensions before the channels; the result has x's memory format, channels last
// or contiguous. Equals torch's function of the same name, including its options. For the gradient, a maximum stores
// one byte per result. A window has at most 256 elements.
SPIKEFORGE_API at::Tensor max_pool2d(const at::Tensor& x, const MaxPool2d& options);

// Returns the maxima, and the mean and biased variance [C] of all of x, for batch_norm_run: a batch normalisation
// before a maximum equals one after it, which has fewer elements. The backward pass is one pass over x. `dilation` must
// be 1.
//
//   auto [y, mean, var] = spikeforge::max_pool2d_statistics(x, {.kernel_size = {2}, .weight = bn->weight});
//   spikeforge::batch_norm_run(lif, {y}, {}, {}, {.weight = bn->weight, .bias = bn->bias, .mean = mean, .var = var});
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor, at::Tensor> max_pool2d_statistics(const at::Tensor& x,
                                                                                    const MaxPool2d& options);

SPIKEFORGE_API at::Tensor avg_pool2d(const at::Tensor& x, const AvgPool2d& options);

}  // namespace spikeforge
