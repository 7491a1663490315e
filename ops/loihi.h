// Lava's neurons and connections, and Loihi's integer arithmetic bit for bit: the C++ face of the operators
// torch.ops.spikeforge.loihi_* and of lava_neuron. The equations are in <spikeforge/neuron/loihi.h>.
//
// Tensors are int32 (weights before their preparation aside) and have no gradients; or they are float32 or float64, all
// that a call has of one type, hold whole numbers, and the call gives the same numbers and is differentiable: the
// gradient goes straight through rounding, shifts and wraps, a spike's is the surrogate's (docs/loihi.md). x is
// [T, *shape], time first; states are [*shape]. Errors are c10::TypeError and c10::ValueError and name operator and
// argument. A number out of its range is refused; so is a tensor with a value out of range, if it is on the CPU:
// tensors on a GPU are not read.
#pragma once

#include "csrc/base/export.h"
#include "csrc/neuron/loihi.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace spikeforge {

// A parameter: an integer, or a tensor that broadcasts against shape: int32, or beside a floating-point x of its type.
class LoihiNumber {
 public:
  LoihiNumber(std::int64_t number) : value_(number) {}           // NOLINT(google-explicit-constructor)
  LoihiNumber(int number) : value_(std::int64_t{number}) {}      // NOLINT(google-explicit-constructor)
  LoihiNumber(at::Tensor tensor) : value_(std::move(tensor)) {}  // NOLINT(google-explicit-constructor)

  bool is_tensor() const { return std::holds_alternative<at::Tensor>(value_); }
  std::int64_t number() const { return std::get<std::int64_t>(value_); }
  const at::Tensor& tensor() const { return std::get<at::Tensor>(value_); }

 private:
  std::variant<std::int64_t, at::Tensor> value_;
};

// The initial state of a neuron, 0 by default. The counter is `phase` for LoihiForm::reset, `wait` for
// LoihiForm::refractory.
struct LoihiState {
  std::optional<at::Tensor> u, v, counter;
};

struct LoihiOptions {
  LoihiNumber du = 0;         // [-1, 4095]; u decays by (du + 1) / 4096 a step
  LoihiNumber dv = 0;         // [0, 4096]; v decays by dv / 4096 a step; 4096 forgets all of it, as in Lava
  LoihiNumber bias_mant = 0;  // [-4096, 4095]
  LoihiNumber bias_exp = 0;   // [-31, 7]
  LoihiNumber vth = 10;       // [0, 131072], in units of 64 of v; of a ternary neuron the upper one, down to -131072
  LoihiNumber vth_lo = -10;   // [-131072, 131072]; of a ternary neuron
  LoihiForm form = LoihiForm::plain;
  std::int64_t reset_interval = 1;
  std::int64_t reset_offset = 0;
  std::int64_t refractory_period = 1;
  bool store_states = false;                           // sequences of states, [T, *shape], rather than the last ones
  std::optional<at::Tensor> lengths = {}, start = {};  // of samples, as for other neurons (neuron.h)
  // For a floating-point x. The argument of the surrogate is h / (64 vth) - 1, the voltage above the threshold in units
  // of it.
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};  // none: its defaults
  bool detach_reset = false;
};

// Spikes are 0 or 1, of a ternary neuron -1, 0 or 1. The counter is undefined in LoihiForm::plain.
struct LoihiResults {
  at::Tensor spikes, u, v, counter;
};

SPIKEFORGE_API LoihiResults loihi_lif(const at::Tensor& x, const LoihiState& state = {},
                                      const LoihiOptions& options = {});
SPIKEFORGE_API LoihiResults loihi_ternary_lif(const at::Tensor& x, const LoihiState& state = {},
                                              const LoihiOptions& options = {});

// ---- connections ----

// Weights as the chip holds them: truncated toward zero; clipped to 8 bits and a sign, [0, 255] (excitatory), [-255, 0]
// (inhibitory) or [-256, 255] (mixed); the lowest 8 - num_weight_bits of them cleared, one more in mixed mode, towards
// minus infinity (inhibitory ones towards zero). The mode without a word about it: excitatory if no weight is negative,
// inhibitory if none is positive, else mixed; the signs are those before the truncation.
SPIKEFORGE_API at::Tensor loihi_prepare_weights(const at::Tensor& weight, std::int64_t num_weight_bits = 8,
                                                std::optional<std::string_view> sign_mode = std::nullopt);

// Floating-point weights as whole numbers that the chip holds, of their own type: to the nearest ones, or with
// `truncate` those of loihi_prepare_weights. The gradient is that of the clip: straight through within the range of the
// sign mode, ends included, and 0 outside.
SPIKEFORGE_API at::Tensor loihi_fake_quantize(const at::Tensor& weight, std::int64_t num_weight_bits = 8,
                                              std::optional<std::string_view> sign_mode = std::nullopt,
                                              bool truncate = false);

// Integers in the range of their sign mode (inferred where it is not given) in as few bits as hold them: the weights
// times the largest 2^-weight_exp (weight_exp from -8 to 0) that fits, and the fewest bits that keep these. The product
// with the new weights, shifted by weight_exp, is that with the old ones. Reads the weights on the host.
struct OptimizedWeights {
  at::Tensor weights;  // int32, on the CPU
  std::int64_t num_weight_bits = 8, weight_exp = 0;
};
SPIKEFORGE_API OptimizedWeights loihi_optimize_weight_bits(const at::Tensor& weight,
                                                           std::optional<std::string_view> sign_mode = std::nullopt);

struct LoihiConnectionOptions {
  std::int64_t delay = 1;             // [0, 64] steps until a message arrives; Lava has 1
  std::int64_t weight_exp = 0;        // [-8, 7]: the sum is shifted to the left, or arithmetically to the right
  std::int64_t num_message_bits = 0;  // 0: a message is a spike, and anything but 0 counts as 1
};

// y [T, *batch, out] is the sum that arrives in each step. buffer [delay, *batch, out] has the sums for later steps:
// pass it to the next call. Nothing saturates: sums are exact modulo 2^32.
struct Arrivals {
  at::Tensor y, buffer;
};

// x [T, *batch, in], prepared weights [out, in].
SPIKEFORGE_API Arrivals loihi_dense(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& buffer = std::nullopt,
                                    const LoihiConnectionOptions& options = {});

// The same on weights in CSR: crow_indices [out + 1], col_indices and values [nnz].
SPIKEFORGE_API Arrivals loihi_sparse(const at::Tensor& x, const at::Tensor& crow_indices, const at::Tensor& col_indices,
                                     const at::Tensor& values, const std::optional<at::Tensor>& buffer = std::nullopt,
                                     const LoihiConnectionOptions& options = {});

// With one delay per synapse: delays [out, in], from 0 to max_delay <= 63. A message of step t arrives at
// t + 1 + delay. The buffer has max_delay + 1 slots; options.delay is not read. The sum of each delay is shifted
// separately.
SPIKEFORGE_API Arrivals loihi_delay_dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delays,
                                          std::int64_t max_delay,
                                          const std::optional<at::Tensor>& buffer = std::nullopt,
                                          const LoihiConnectionOptions& options = {});

// A convolution in two dimensions: height, width. A single number applies to both.
struct LoihiConvGeometry {
  std::vector<std::int64_t> stride = {1}, padding = {0}, dilation = {1};
  std::int64_t groups = 1;
};

// x [T, *batch, in, height, width], prepared weights [out, in / groups, kernel height, kernel width] in torch's order:
// a cross-correlation (Lava's kernels are these turned around, and its dimensions width, height, channels). y and
// buffer are [., *batch, out, height, width]. Sums wrap around at 24 bits.
SPIKEFORGE_API Arrivals loihi_conv(const at::Tensor& x, const at::Tensor& weight,
                                   const LoihiConvGeometry& geometry = {},
                                   const std::optional<at::Tensor>& buffer = std::nullopt,
                                   const LoihiConnectionOptions& options = {});

// ---- from a float network ----

// A connection and the neurons after it: spikeforge::lif with hard reset to 0, whose input is weight x + bias.
struct FloatLayer {
  at::Tensor weight;                    // [out, in], floating point
  std::optional<at::Tensor> bias = {};  // [out]
  double tau = 2;
  bool decay_input = true;
  double v_threshold = 1;
  double input_scale = 1;  // the float value of a message 1
  std::int64_t largest_message = 1;
};

// The same layer in fixed point: loihi_dense(x, weight, weight_exp), then loihi_lif(du = 4095, dv, bias, vth).
struct FixedLayer {
  at::Tensor weight;     // [out, in], prepared
  at::Tensor bias_mant;  // [out]
  std::int64_t bias_exp = 0, weight_exp = 0, dv = 0, vth = 0;
  double scale = 1;  // of currents: a float current of 1 is `scale` in x, and 64 scale in v
  // The maximum rounding errors. The first two are relative to the largest weight and to the threshold.
  double weight_error = 0, bias_error = 0;
  double threshold_error = 0;  // relative
  double decay_error = 0;      // of 1 / tau
};

// The scale is the largest at which weights, threshold, bias and the largest possible current fit into their fields,
// with the weights' largest magnitude at the end of its range: 2^k times it for an integer k, the exponent.
SPIKEFORGE_API FixedLayer loihi_quantize(const FloatLayer& layer, std::int64_t num_weight_bits = 8);

// ---- as neuron text (<spikeforge/ops/traced.h>) ----

// Lava's floating-point neurons. Inputs x, states u, v and phase or wait; parameters du, dv, bias, vth (or vth_hi,
// vth_lo), and interval, offset or period: lif, ternary_lif, lif_reset, lif_refractory. Also atrlif, rf, sigma, delta,
// sigma_delta and sigma_delta_unit, whose names docs/loihi.md lists.
SPIKEFORGE_API const std::string& lava_neuron(std::string_view name);

// Fixed-point neurons on floating-point numbers that are whole: lif and ternary_lif and their forms, whose operators
// are those above, and atrlif, rf, delta, sigma_delta and sigma_delta_unit. Their spikes have this surrogate, whose
// argument is the distance above the threshold in units of it.
SPIKEFORGE_API std::string loihi_neuron(std::string_view name, std::string_view surrogate = "sigmoid",
                                        const std::vector<double>& surrogate_args = {});

}  // namespace spikeforge
