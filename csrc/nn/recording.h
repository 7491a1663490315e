// One variable or port, recorded step by step into rows that are allocated once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace spikeforge::nn {

class Recording {
 public:
  // Records state, or output, number `index` of a module.
  Recording(bool is_state, std::size_t index) : is_state_(is_state), index_(index) {}

  bool is_state() const { return is_state_; }
  std::size_t index() const { return index_; }

  // Room for so many more steps.
  void expect(std::int64_t steps);
  // The next steps, [n, *shape].
  void add(const at::Tensor& sequence);
  // The steps so far, [steps, *shape]; undefined before the first step.
  at::Tensor rows() const;

 private:
  bool is_state_;
  std::size_t index_;
  at::Tensor rows_;
  std::int64_t length_ = 0, capacity_ = 0;
};

}  // namespace spikeforge::nn
