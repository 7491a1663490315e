// Lava's neurons and connections, and Loihi's integer arithmetic bit for bit: the C++ interface of the operators
// torch.ops.spikeforge.loihi_* and of lava_neuron. The equations are in <spikeforge/neuron/loihi.h>.
//
// Tensors are int32 (except weights before their preparation) and have no gradients. Or all tensors of a call are
// float32 or float64 with integer values: then the call returns the same values and is differentiable, straight-through
// for rounding, shifts and wraps, and by the surrogate for spikes (docs/loihi.md). x is [T, *shape], time first; states
// are [*shape]. Errors are c10::TypeError and c10::ValueError and name the operator and the argument. A scalar out of
// range raises an error, and so does a tensor on the CPU with a value out of range; values of tensors on a GPU are not
// checked.
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

// A parameter: an integer, or a tensor that broadcasts against shape, int32 or the type of a floating-point x.
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
  LoihiNumber dv = 0;         // [0, 4096]; v decays by dv / 4096 a step; 4096 clears it, as in Lava
  LoihiNumber bias_mant = 0;  // [-4096, 4095]
  LoihiNumber bias_exp = 0;   // [-31, 7]
  LoihiNumber vth = 10;       // [0, 131072], in units of 64 in v; upper one of a ternary neuron: from -131072
  LoihiNumber vth_lo = -10;   // [-131072, 131072]; for a ternary neuron
  LoihiForm form = LoihiForm::plain;
  std::int64_t reset_interval = 1;
  std::int64_t reset_offset = 0;
  std::int64_t refractory_period = 1;
  bool store_states = false;                           // returns sequences of states, [T, *shape]
  std::optional<at::Tensor> lengths = {}, start = {};  // of samples, as for other neurons (neuron.h)
  // The surrogate for a floating-point x. Its argument is h / (64 vth) - 1, the voltage above the threshold in units of
  // the threshold.
  std::string surrogate = "sigmoid";
  std::vector<double> surrogate_args = {};  // empty: its defaults
  bool detach_reset = false;
};

// Spikes are 0 or 1, or -1, 0 or 1 for a ternary neuron. The counter is undefined for LoihiForm::plain.
struct LoihiResults {
  at::Tensor spikes, u, v, counter;
};

SPIKEFORGE_API LoihiResults loihi_lif(const at::Tensor& x, const LoihiState& state = {},
                                      const LoihiOptions& options = {});
SPIKEFORGE_API LoihiResults loihi_ternary_lif(const at::Tensor& x, const LoihiState& state = {},
                                              const LoihiOptions& options = {});

// ---- connections ----

// Converts weights to the chip's format: truncated toward zero; clipped to 8 bits and a sign, [0, 255] (excitatory),
// [-255, 0] (inhibitory) or [-256, 255] (mixed); and with the lowest 8 - num_weight_bits bits cleared, one more in
// mixed mode, toward minus infinity (inhibitory ones toward zero). The default mode is excitatory if no weight is
// negative, inhibitory if none is positive, else mixed, by the signs before the truncation.
SPIKEFORGE_API at::Tensor loihi_prepare_weights(const at::Tensor& weight, std::int64_t num_weight_bits = 8,
                                                std::optional<std::string_view> sign_mode = std::nullopt);

// Rounds floating-point weights to integers that the chip can store, in their type: to the nearest ones, or with
// `truncate` as loihi_prepare_weights. The gradient is that of the clipping: straight-through within the range of the
// sign mode, ends included, and 0 outside.
SPIKEFORGE_API at::Tensor loihi_fake_quantize(const at::Tensor& weight, std::int64_t num_weight_bits = 8,
                                              std::optional<std::string_view> sign_mode = std::nullopt,
                                              bool truncate = false);

// Integer weights in the range of their sign mode (inferred if not given) with the minimum number of bits: the weights
// times the largest 2^-weight_exp (weight_exp from -8 to 0) that fits, and the smallest number of bits that represents
// them. The product with the new weights, shifted by weight_exp, equals that with the old ones. Reads the weights on
// the host.
struct OptimizedWeights {
  at::Tensor weights;  // int32, on the CPU
  std::int64_t num_weight_bits = 8, weight_exp = 0;
};
SPIKEFORGE_API OptimizedWeights loihi_optimize_weight_bits(const at::Tensor& weight,
                                                           std::optional<std::string_view> sign_mode = std::nullopt);

struct LoihiConnectionOptions {
  std::int64_t delay = 1;             // [0, 64] steps until a message arrives; Lava has 1
  std::int64_t weight_exp = 0;        // [-8, 7]: the left shift of the sum; negative: arithmetic right shift
  std::int64_t num_message_bits = 0;  // 0: messages are spikes; any value except 0 counts as 1
};

// y [T, *batch, out] has the sums that arrive in each step, and buffer [delay, *batch, out] those for later steps: pass
// it to the next call. Sums do not saturate: they are exact modulo 2^32.
struct Arrivals {
  at::Tensor y, buffer;
};

// A dense connection: x [T, *batch, in], prepared weights [out, in].
SPIKEFORGE_API Arrivals loihi_dense(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& buffer = std::nullopt,
                                    const LoihiConnectionOptions& options = {});

// The same for weights in CSR: crow_indices [out + 1], col_indices and values [nnz].
SPIKEFORGE_API Arrivals loihi_sparse(const at::Tensor& x, const at::Tensor& crow_indices, const at::Tensor& col_indices,
                                     const at::Tensor& values, const std::optional<at::Tensor>& buffer = std::nullopt,
                                     const LoihiConnectionOptions& options = {});

// A dense connection with one delay per synapse: delays [out, in], from 0 to max_delay <= 63. A message of step t
// arrives at t + 1 + delay. The buffer has max_delay + 1 slots; options.delay is not read. The sum of each delay is
// shifted separately.
SPIKEFORGE_API Arrivals loihi_delay_dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& delays,
                                          std::int64_t max_delay,
                                          const std::optional<at::Tensor>& buffer = std::nullopt,
                                          const LoihiConnectionOptions& options = {});

// A convolution in two dimensions: height, width. A single number applies to both.
struct LoihiConvGeometry {
  std::vector<std::int64_t> stride = {1}, padding = {0}, dilation = {1};
  std::int64_t groups = 1;
};

// A convolution: x [T, *batch, in, height, width], prepared weights [out, in / groups, kernel height, kernel width] in
// torch's order: a cross-correlation (Lava's kernels are flipped, and its dimensions are width, height, channels). y
// and buffer are [., *batch, out, height, width]. Sums wrap around at 24 bits.
SPIKEFORGE_API Arrivals loihi_conv(const at::Tensor& x, const at::Tensor& weight,
                                   const LoihiConvGeometry& geometry = {},
                                   const std::optional<at::Tensor>& buffer = std::nullopt,
                                   const LoihiConnectionOptions& options = {});

// ---- from a float network ----

// A connection and the neurons after it: spikeforge::lif with hard reset to 0 and the input weight x + bias.
struct FloatLayer {
  at::Tensor weight;                    // [out, in], floating point
  std::optional<at::Tensor> bias = {};  // [out]
  double tau = 2;
  bool decay_input = true;
  double v_threshold = 1;
  double input_scale = 1;  // the float value of the message 1
  std::int64_t largest_message = 1;
};

// The same layer in fixed point: loihi_dense(x, weight, weight_exp), then loihi_lif(du = 4095, dv, bias, vth).
struct FixedLayer {
  at::Tensor weight;     // [out, in], prepared
  at::Tensor bias_mant;  // [out]
  std::int64_t bias_exp = 0, weight_exp = 0, dv = 0, vth = 0;
  double scale = 1;  // of currents: a float current of 1 is `scale` in x, 64 scale in v
  // The maximum rounding errors. The first two are relative to the largest weight and to the threshold.
  double weight_error = 0, bias_error = 0;
  double threshold_error = 0;  // relative
  double decay_error = 0;      // of 1 / tau
};

// Quantizes a layer. The scale is the largest one at which weights, threshold, bias and the largest possible current
// fit into their fields, and at which the largest magnitude of the weights is 2^k times the end of its range, for an
// integer exponent k.
SPIKEFORGE_API FixedLayer loihi_quantize(const FloatLayer& layer, std::int64_t num_weight_bits = 8);

// ---- as neuron text (<spikeforge/ops/traced.h>) ----

// Returns the text of one of Lava's floating-point neurons. Inputs x, states u, v and phase or wait; parameters du, dv,
// bias, vth (or vth_hi, vth_lo), and interval, offset or period: lif, ternary_lif, lif_reset, lif_refractory. Also
// atrlif, rf, sigma, delta, sigma_delta and sigma_delta_unit, whose names docs/loihi.md lists.
SPIKEFORGE_API const std::string& lava_neuron(std::string_view name);

// Returns the text of a fixed-point neuron on floating-point tensors with integer values: lif and ternary_lif and their
// forms, whose operators are those above, and atrlif, rf, delta, sigma_delta and sigma_delta_unit. Spikes have this
// surrogate, whose argument is the distance above the threshold in units of the threshold.
SPIKEFORGE_API std::string loihi_neuron(std::string_view name, std::string_view surrogate = "sigmoid",
                                        const std::vector<double>& surrogate_args = {});

}  // namespace spikeforge
