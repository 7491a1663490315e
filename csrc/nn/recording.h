// Records one variable or port, step by step, into rows that are allocated once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace spikeforge::nn {

class Recording {
 public:
  // Records the state or output with this index of a module.
  Recording(bool is_state, std::size_t index) : is_state_(is_state), index_(index) {}

  bool is_state() const { return is_state_; }
  std::size_t index() const { return index_; }

  // Reserves memory for this number of further steps.
  void expect(std::int64_t steps);
  // Appends the next steps, [n, *shape].
  void add(const at::Tensor& sequence);
  // Returns the recorded steps, [steps, *shape]; undefined before the first step.
  at::Tensor rows() const;

 private:
  bool is_state_;
  std::size_t index_;
  at::Tensor rows_;
  std::int64_t length_ = 0, capacity_ = 0;
};

}  // namespace spikeforge::nn
