// The device-independent parts of delayed_linear.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace spikeforge::ops::layers::delayed {

using MaybeTensor = std::optional<at::Tensor>;

constexpr std::int64_t longest = 4096;  // the maximum delay with a product per step

enum class Interpolation : std::uint8_t { linear, triangle, gauss };

Interpolation interpolation_of(std::string_view name);  // throws ValueError

// κ_k(d), and its derivative with respect to d:
//   linear     1 - f at k = ⌊d⌋ and f at k = ⌊d⌋ + 1, f = d - ⌊d⌋; at integer delays the derivative is the one to the
//              right, at max_delay the one to the left
//   triangle   max(0, 1 + width - |k - d|) / Σ_k
//   gauss      exp(-(k - d)² / (2 width²)) / Σ_k
// Delays are clamped to 0 and max_delay, with the gradient of clamp.
class Spread {
 public:
  // Delays are float32 or float64.
  Spread(const at::Tensor& delay, std::int64_t most, Interpolation form, double width);

  // The steps from first() on contain all of κ that its type can represent. first() is integral, even for NaN delays.
  std::int64_t steps() const { return steps_; }
  const at::Tensor& first() const { return first_; }

  // Returns the same for delays that are expanded to these sizes.
  Spread expanded(c10::IntArrayRef sizes) const;

  // The value and the derivative at step k.
  at::Tensor value(std::int64_t k) const { return value_at(static_cast<double>(k)); }
  at::Tensor slope(std::int64_t k) const { return slope_at(static_cast<double>(k)); }
  // The value and the derivative at step first() + n of each delay.
  at::Tensor own_value(std::int64_t n) const;
  at::Tensor own_slope(std::int64_t n) const;

 private:
  template <class K> at::Tensor value_at(const K& k) const;
  template <class K> at::Tensor slope_at(const K& k) const;
  template <class K> std::pair<at::Tensor, at::Tensor> unscaled(const K& k) const;

  Interpolation form_;
  double width_;
  std::int64_t most_, steps_ = 1;
  at::Tensor inside_, delay_, first_, sum_, slope_of_sum_;
};

// A call with checked arguments.
struct Call {
  at::Tensor x, weight, delay;
  std::int64_t max_delay;
  MaybeTensor past;
  Spread spread;

  bool of_inputs() const { return delay.dim() == 1; }  // one delay per input
};

// The needed gradients. Those of x and past, and those of weight and delay, are computed together.
struct Wanted {
  bool x, weight, delay, past;
};

// The gradients, in the type of sums or of x; undefined if not needed.
struct Gradients {
  at::Tensor x, weight, delay, past;
};

at::Tensor forward_cpu(const Call& call);
Gradients backward_cpu(const Call& call, const at::Tensor& grad, const Wanted& wanted);
at::Tensor forward_cuda(const Call& call);
Gradients backward_cuda(const Call& call, const at::Tensor& grad, const Wanted& wanted);

// ---- products by rows ----
//
// Computes delayed_linear without a product for each of max_delay + 1 steps, which would mostly multiply by zeros: a
// delay of the linear form has two steps. Sequences become rows of features in which a delay is a shift. The cost is
// one product per step of a delay, and does not depend on max_delay. Each device has its own rows
// (delayed_linear_cpu.cpp, delayed_linear_cuda.cpp) with a common interface.

// Some steps of each delay, in temporal order.
struct Taps {
  at::Tensor shifts;        // int32 [rows, columns] or [features]
  at::Tensor coefficients;  // [..., taps]

  std::int64_t count() const { return coefficients.size(-1); }
  bool of_matrix() const { return shifts.dim() == 2; }
};

// The rows of a call on its device, in the type of sums: [groups, features, ...], where a step of a group is `lanes`
// contiguous values, one per sample, and a delay is a shift.
class Rows {
 public:
  explicit Rows(const Call& call);
  virtual ~Rows() = default;

  std::int64_t steps() const { return steps_; }
  std::int64_t samples() const { return samples_; }
  std::int64_t max_delay() const { return max_delay_; }
  const at::TensorOptions& options() const { return options_; }
  c10::ScalarType type() const { return c10::typeMetaToScalarType(options_.dtype()); }
  bool empty() const { return steps_ == 0 || samples_ == 0; }
  virtual std::int64_t lanes() const = 0;

  virtual at::Tensor zeros(std::int64_t features, std::int64_t steps) const = 0;
  // The same, but the `count` steps from `step` on are uninitialized, because the next read() writes them.
  virtual at::Tensor open(std::int64_t features, std::int64_t steps, std::int64_t step, std::int64_t count) const = 0;
  // Writes `sequence` [steps, *batch, features] to `rows` from `step` on.
  virtual void read(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step) const = 0;
  // Returns rows as [steps, samples, features], in their type or in x's.
  virtual at::Tensor written(const at::Tensor& rows, std::int64_t steps) const = 0;

  // Adds the convolution of the rows `in`, from `step` on, with `taps` to the `steps` steps of the rows `out`.
  virtual void add(const Taps& taps, const at::Tensor& in, std::int64_t step, const at::Tensor& out,
                   std::int64_t steps) const = 0;
  // Returns for each coefficient the sum of the products of `of`, from its step max_delay on, with the rows `in`, which
  // must be the same in every call.
  virtual at::Tensor sums(const Taps& taps, const at::Tensor& of, const at::Tensor& in) = 0;
  // Returns a matrix product of rows.
  virtual at::Tensor product(const at::Tensor& a, const at::Tensor& b) const = 0;

 private:
  at::TensorOptions options_;
  std::int64_t steps_, samples_, max_delay_;
};

at::Tensor forward_by_rows(const Call& call, Rows& rows);
Gradients backward_by_rows(const Call& call, Rows& rows, const at::Tensor& grad, const Wanted& wanted);

}  // namespace spikeforge::ops::layers::delayed
