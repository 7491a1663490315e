// delayed_linear without a product for each of max_delay + 1 steps, which would mostly multiply by zeros: a delay of
// the linear form has two steps. Sequences become rows of features in which a delay is a shift. The cost is one
// product per step of a delay, and does not depend on max_delay. Each device has its own rows (delayed_linear_cpu.cpp,
// delayed_linear_cuda.cpp) with a common interface.
#pragma once

#include "ops/layer/delayed_linear.h"

#include <cstdint>

namespace spikeforge::ops::layers::delayed {

// Some steps of each delay, in the order of time.
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
  // The steps of `rows` from `step` on, as `sequence` [steps, *batch, features] has them.
  virtual void read(const at::Tensor& sequence, const at::Tensor& rows, std::int64_t step) const = 0;
  // [steps, samples, features] from rows, in their type or in x's.
  virtual at::Tensor written(const at::Tensor& rows, std::int64_t steps) const = 0;

  // Adds the convolution of the rows `in`, from `step` on, with `taps` to the `steps` steps of the rows `out`.
  virtual void add(const Taps& taps, const at::Tensor& in, std::int64_t step, const at::Tensor& out,
                   std::int64_t steps) const = 0;
  // For each coefficient the sum of products of `of`, from its step max_delay on, with the rows `in`, which are the
  // same in every call.
  virtual at::Tensor sums(const Taps& taps, const at::Tensor& of, const at::Tensor& in) = 0;
  // A matrix product of rows.
  virtual at::Tensor product(const at::Tensor& a, const at::Tensor& b) const = 0;

 private:
  at::TensorOptions options_;
  std::int64_t steps_, samples_, max_delay_;
};

at::Tensor forward_by_rows(const Call& call, Rows& rows);
Gradients backward_by_rows(const Call& call, Rows& rows, const at::Tensor& grad, const Wanted& wanted);

}  // namespace spikeforge::ops::layers::delayed
