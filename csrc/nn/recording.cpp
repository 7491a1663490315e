#include "csrc/nn/recording.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

namespace spikeforge::nn {

void Recording::expect(std::int64_t steps) { capacity_ = std::max(capacity_, length_ + steps); }

void Recording::add(const at::Tensor& sequence) {
  const at::NoGradGuard no_grad;
  const std::int64_t steps = sequence.size(0);
  if (length_ + steps > capacity_) capacity_ = std::max(length_ + steps, 2 * length_);
  if (!rows_.defined() || rows_.size(0) < capacity_) {
    std::vector<std::int64_t> shape = sequence.sizes().vec();
    shape[0] = capacity_;
    const at::Tensor longer = at::empty(shape, sequence.options());
    if (length_ > 0) longer.narrow(0, 0, length_).copy_(rows_.narrow(0, 0, length_));
    rows_ = longer;
  }
  TORCH_CHECK_VALUE(rows_.sizes().slice(1) == sequence.sizes().slice(1), "a recording of values of shape ",
                    rows_.sizes().slice(1), " cannot go on with values of shape ", sequence.sizes().slice(1));
  rows_.narrow(0, length_, steps).copy_(sequence);
  length_ += steps;
}

at::Tensor Recording::rows() const { return rows_.defined() ? rows_.narrow(0, 0, length_) : rows_; }

}  // namespace spikeforge::nn
