// What tells numbers, texts and tensors from others, the same in every process.
#pragma once

#include <spikeforge/base/hash.h>

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace spikeforge::simulation {

// Fowler, Noll and Vo's, of 64 bits, version 1a; of a tensor's bytes hash128, which is faster.
class Digest {
 public:
  Digest& add(std::int64_t number) { return add_bytes(&number, sizeof number); }
  Digest& add(double number) { return add(std::bit_cast<std::int64_t>(number)); }
  Digest& add(std::string_view text) { return add(std::ssize(text)).add_bytes(text.data(), text.size()); }
  Digest& add(const at::Tensor& t) {
    if (!t.defined()) return add(std::int64_t{-1});
    const at::Tensor plain = t.cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
    return add(static_cast<std::int64_t>(plain.scalar_type()))
        .add(plain.numel())
        .add(static_cast<std::int64_t>(hash128({bytes}).low));
  }
  std::int64_t sum() const { return static_cast<std::int64_t>(sum_); }

 private:
  Digest& add_bytes(const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) sum_ = (sum_ ^ begin[i]) * 0x100000001b3U;
    return *this;
  }

  std::uint64_t sum_ = 0xcbf29ce484222325U;
};

}  // namespace spikeforge::simulation
