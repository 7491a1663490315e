// Draws one projection into a matrix: what each step of the devices is given (kernels/event/connection_rules.h), rule
// by rule, and the steps.
#pragma once

#include "csrc/kernels/event/connection_rules.h"
#include "ops/common/connect_projection.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>

namespace spikeforge::ops::sparse {

// A step on the CPU.
void connect_cpu(event::ConnectStep step, const event::ConnectArguments& args);

// Draws projection `number` of a matrix, which must outlive it.
class Drawing {
 public:
  Drawing(const Projection& p, std::size_t number, std::int64_t seed, std::int64_t rows, at::TensorOptions options);

  // Returns the number of connections of each source, int32 [sources].
  at::Tensor counts() const;

  // Fills the rows, which begin at `starts`, int64 [sources], and have `counts` connections.
  void fill_indices(const at::Tensor& indices, const at::Tensor& starts, const at::Tensor& counts) const;
  void fill_numbers(const at::Tensor& numbers, const NumberLaw& law, int of, const at::Tensor& starts,
                    const at::Tensor& counts) const;

  // For arrays: returns the position of each connection, by rows and within a row in the order of the arrays.
  at::Tensor slots(const at::Tensor& starts, const at::Tensor& counts) const;

  bool is_of_arrays() const { return rule_ == ConnectionRule::arrays; }
  const Projection& projection() const { return p_; }

 private:
  event::PlaceRule rule_of_places() const;
  at::Tensor without_own(at::Tensor counts) const;
  // For a fixed in-degree: returns the sources of all targets, int32 [targets * degree].
  at::Tensor sources_of_targets() const;
  void run(event::ConnectStep step, const event::ConnectArguments& args) const;

  const Projection& p_;
  ConnectionRule rule_;
  at::TensorOptions options_;  // int32 on the device
  event::Lines by_rows_{};
  std::int64_t degree_ = 0;
};

}  // namespace spikeforge::ops::sparse
