// A digest of numbers, strings and tensors that is the same in every process.
#pragma once

#include "csrc/base/hash.h"

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spikeforge::simulation {

class Digest {
 public:
  Digest& add(std::int64_t number) { return add_bytes(&number, sizeof number); }
  Digest& add(double number) { return add(std::bit_cast<std::int64_t>(number)); }
  Digest& add(std::string_view text) { return add_bytes(text.data(), text.size()); }
  Digest& add(const at::Tensor& t) {
    if (!t.defined()) return add(std::int64_t{-1});
    const at::Tensor plain = t.cpu().contiguous();
    return add(static_cast<std::int64_t>(plain.scalar_type())).add_bytes(plain.const_data_ptr(), plain.nbytes());
  }
  std::int64_t sum() const { return static_cast<std::int64_t>(sum_); }

 private:
  Digest& add_bytes(const void* data, std::size_t bytes) {
    const std::string_view before(reinterpret_cast<const char*>(&sum_), sizeof sum_);
    sum_ = hash128({before, {static_cast<const char*>(data), bytes}}).low;
    return *this;
  }

  std::uint64_t sum_ = 0;
};

}  // namespace spikeforge::simulation
