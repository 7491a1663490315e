// Input that the caller of some steps passes to neurons, in addition to drives and currents.
#pragma once

#include "csrc/simulation/internal/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace spikeforge::simulation {

// The columns with input: a range of each copy, or `listed`, int64 [columns], distinct, in host memory.
struct InputColumns {
  std::int64_t first = 0, width = 0;
  at::Tensor listed = {};

  bool operator==(const InputColumns& other) const;
};

class ExternalInput {
 public:
  ExternalInput() = default;

  // Throws TypeError or ValueError if an input does not fit the network or the number of steps.
  ExternalInput(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs);

  bool empty() const { return !dense_.defined() && !has_events(); }
  bool has_events() const { return columns_.defined(); }

  // Adds the input of step `step` of the call to columns first, ..., last - 1 of a copy, the first of which is at `to`.
  // On the CPU.
  template <class T> void add(std::int64_t step, std::int64_t first, std::int64_t last, T* to) const;

  // Calls f(begin, end) for ranges of columns that contain all input of steps first, ..., first + count - 1. On the
  // CPU.
  template <class F> void for_each_range(std::int64_t first, std::int64_t count, F&& f) const {
    for (std::int64_t copy = 0; dense_.defined() && copy < copies_; ++copy) {
      const std::int64_t before = copy * copy_columns_;
      const auto* const listed = listed_.defined() ? listed_.const_data_ptr<std::int64_t>() : nullptr;
      for (std::int64_t i = 0; listed != nullptr && i < dense_.size(2); ++i)
        f(before + listed[i], before + listed[i] + 1);
      if (listed == nullptr) f(before + first_, before + first_ + dense_.size(2));
    }
    if (!has_events()) return;
    const auto* const columns = columns_.const_data_ptr<std::int64_t>();
    const auto at = static_cast<std::size_t>(first);
    for (std::int64_t i = starts_[at]; i < starts_[at + static_cast<std::size_t>(count)]; ++i)
      f(columns[i], columns[i] + 1);
  }

  // Returns the columns with input, the same as indices on the network's device, int64 [columns with input], and the
  // input of steps first, ..., first + count - 1 as a tensor [count, columns with input].
  const InputColumns& columns() const;
  at::Tensor indices() const;
  at::Tensor rows(std::int64_t first, std::int64_t count) const;

 private:
  at::Tensor of_copies(const at::Tensor& columns) const;
  void add_dense(const NetworkState& state, const std::vector<StepInput>& inputs);
  void add_events(const NetworkState& state, std::int64_t steps, const std::vector<StepInput>& inputs);

  std::int64_t copies_ = 1, copy_columns_ = 0;
  at::Tensor dense_;        // [steps, copies, columns], contiguous
  std::int64_t first_ = 0;  // its first column within a copy, if they are consecutive
  at::Tensor listed_;  // else the columns within a copy, int64, distinct, in host memory; they ascend if the network is
                       // on the CPU
  // Events in the order of steps and columns: those of step t are starts_[t], ..., starts_[t + 1] - 1.
  std::vector<std::int64_t> starts_;
  at::Tensor columns_, values_;  // int64 [events], on the CPU, and the dtype of the network
  c10::Device device_{c10::kCPU};
  mutable InputColumns with_input_;              // found at the first use
  mutable at::Tensor places_, places_of_dense_;  // of events and of dense columns among the listed columns
};

}  // namespace spikeforge::simulation
