// The layer around a neuron: the C++ face of torch.ops.spikeforge.batch_norm_run, channel_statistics, linear,
// convolution, delayed_linear, max_pool2d and avg_pool2d, where every argument is explained (docs/layers.md).
//
//   auto [spikes, states, mean, var] =
//       spikeforge::batch_norm_run(lif, {x}, {}, {tau}, {.weight = bn->weight, .bias = bn->bias});
//
// All of it runs on CPU and GPU and is differentiable. Errors are c10::TypeError and c10::ValueError and name operator
// and argument.
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

// y = (x - mean) / sqrt(var + eps) * weight + bias, each [C], of x's type or float32 beside half types.
struct BatchNorm {
  std::optional<at::Tensor> weight = std::nullopt, bias = std::nullopt;  // none: 1 and 0
  // Both, as in evaluation, or neither: those of the input, over time, batch and space.
  std::optional<at::Tensor> mean = std::nullopt, var = std::nullopt;
  std::int64_t channel_dim = 2;  // of x [T, B, C, ...]; any but time
  double eps = 1e-5;
};

// The result for the first output s and a tensor r of its shape and type: "add" s + r, "and" s r, "iand" (1 - s) r.
struct ResidualConnection {
  at::Tensor tensor;
  std::string_view mode = "add";
};

// The neuron's first input normalised, the neuron run, and its first output joined with a residual, in the passes over
// memory of the neuron alone; statistics of the input take one pass more, and one tensor is kept for the backward pass:
// the input. Gives outputs and states as the neuron does, and the mean and the (biased) variance that were used. With
// last_states false, which goes with store_states false, the list of states is empty, and none are written on a GPU.
SPIKEFORGE_API std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, at::Tensor, at::Tensor> batch_norm_run(
    const Neuron& neuron, at::TensorList inputs, at::TensorList states = {}, at::TensorList params = {},
    const BatchNorm& norm = {}, const std::optional<ResidualConnection>& residual = std::nullopt,
    bool store_states = false, bool last_states = true);

// Mean and biased variance [C] of x's channels, in float32 for half types. The same bits at every call.
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor> channel_statistics(const at::Tensor& x, std::int64_t channel_dim = 2);

// ---- products of spikes that keep bits for the backward pass, in place of x ----
//
// x holds 0 and 1, or with bits 4 whole numbers up to 15. Throws ValueError for other numbers on a CPU where the
// weight's gradient is wanted; on a GPU that gradient is NaN then. With bits 0 x itself is kept, and may hold anything.
// With `recompute` a batch_norm_run that reads the product, or a view of it, keeps nothing of it: its backward pass
// makes it again.

// x [..., in], weight [out, in], bias [out].
SPIKEFORGE_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias = std::nullopt, std::int64_t bits = 1,
                                 bool recompute = false);

// One entry for each dimension of space, or one for all.
struct ConvolutionOptions {
  std::vector<std::int64_t> stride{1}, padding{0}, dilation{1};
  std::int64_t groups = 1;
  std::int64_t bits = 1;
  bool recompute = false;
};

// x [N, in, *space], weight [out, in / groups, *kernel], bias [out], with 1 to 3 dimensions of space.
SPIKEFORGE_API at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                                      const std::optional<at::Tensor>& bias = std::nullopt,
                                      const ConvolutionOptions& options = {});

// ---- delays that are learned ----

struct DelayedLinearOptions {
  std::optional<at::Tensor> bias = std::nullopt;  // [O]
  std::string_view interpolation = "linear";  // how a delay that is not whole is spread over steps; "triangle", "gauss"
  double width = 0.5;                         // of triangle and gauss, in steps
  std::optional<at::Tensor> past =
      std::nullopt;  // the inputs of the max_delay steps before [max_delay, *batch, I]; none: 0
};

// y[t] = Σ_i weight[o, i] x[t - delay[o, i], i] + bias[o]: x [T, *batch, I], weight [O, I], delay [O, I] or, one for
// each input, [I], from 0 to max_delay steps (at most 4096), which need not be whole: docs/delays.md describes how they
// are distributed over whole steps. Differentiable by all tensors, once. Memory does not grow with max_delay but by the
// past.
SPIKEFORGE_API at::Tensor delayed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delay,
                                         std::int64_t max_delay, const DelayedLinearOptions& options = {});

// ---- pooling of sequences ----

// One number, or height and width.
struct MaxPool2d {
  std::vector<std::int64_t> kernel_size, stride{}, padding{0}, dilation{1};  // no stride: kernel_size
  bool ceil_mode = false;
  // [C], that of a normalisation which follows: where it is below 0, a window gives its least number, of which that
  // normalisation will make the largest.
  std::optional<at::Tensor> weight = std::nullopt;
};
struct AvgPool2d {
  std::vector<std::int64_t> kernel_size, stride{}, padding{0};
  bool ceil_mode = false;
  bool count_include_pad = true;
  std::optional<std::int64_t> divisor_override = std::nullopt;
};

// For images x [..., C, H, W] with any dimensions before the channels; the result has x's memory format, channels last
// or contiguous. Equals torch's function of the same name, including its options; for its gradient a maximum stores one
// byte per result. A window has at most 256 places.
SPIKEFORGE_API at::Tensor max_pool2d(const at::Tensor& x, const MaxPool2d& options);

// A batch normalisation of x before a maximum equals one after it, of fewer numbers: returns, for batch_norm_run, the
// maxima, and the mean and biased variance [C] of all of x. Backward is one pass over x. `dilation` is 1.
//
//   auto [y, mean, var] = spikeforge::max_pool2d_statistics(x, {.kernel_size = {2}, .weight = bn->weight});
//   spikeforge::batch_norm_run(lif, {y}, {}, {}, {.weight = bn->weight, .bias = bn->bias, .mean = mean, .var = var});
SPIKEFORGE_API std::tuple<at::Tensor, at::Tensor, at::Tensor> max_pool2d_statistics(const at::Tensor& x,
                                                                                    const MaxPool2d& options);

SPIKEFORGE_API at::Tensor avg_pool2d(const at::Tensor& x, const AvgPool2d& options);

}  // namespace spikeforge
