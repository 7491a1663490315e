// Input that the caller of some steps passes to neurons, in addition to drives and currents.
#pragma once

#include "csrc/simulation/internal/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace spikeforge::simulation {

class ExternalInput {
 public:
  ExternalInput() = default;

  // Throws TypeError or ValueError if an input does not fit the network or the number of steps.
  ExternalInput(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs);

  bool empty() const { return !dense_.defined() && !has_events(); }
  bool has_events() const { return columns_.defined(); }

  // Adds the input of step `step` of the call to columns first, ..., last - 1, the first of which is at `to`. On the
  // CPU.
  template <class T> void add(std::int64_t step, std::int64_t first, std::int64_t last, T* to) const;

  // Calls f(begin, end) for ranges of columns that contain all input of steps first, ..., first + count - 1. On the
  // CPU.
  template <class F> void for_each_range(std::int64_t first, std::int64_t count, F&& f) const {
    if (dense_.defined()) f(first_, first_ + dense_.size(1));
    if (!has_events()) return;
    const auto* const columns = columns_.const_data_ptr<std::int64_t>();
    const auto at = static_cast<std::size_t>(first);
    for (std::int64_t i = starts_[at]; i < starts_[at + static_cast<std::size_t>(count)]; ++i)
      f(columns[i], columns[i] + 1);
  }

  // Returns the input of steps first, ..., first + count - 1 as one tensor [count, columns of a range], and the first
  // column of the range.
  std::pair<at::Tensor, std::int64_t> rows(std::int64_t first, std::int64_t count) const;

 private:
  void add_dense(const NetworkState& state, const std::vector<StepInput>& inputs);
  void add_events(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs);

  at::Tensor dense_;  // [steps, columns of the range], contiguous
  std::int64_t first_ = 0;
  // Events in the order of steps and columns: those of step t are starts_[t], ..., starts_[t + 1] - 1.
  std::vector<std::int64_t> starts_;
  at::Tensor columns_, values_;  // int64 [events], and the dtype of the network
};

}  // namespace spikeforge::simulation
