// The number types of kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spikeforge {

enum class DType : std::uint8_t { f16, bf16, f32, f64, i32 };

constexpr std::size_t size_of(DType type) {
  return type == DType::f64 ? 8 : type == DType::f32 || type == DType::i32 ? 4 : 2;
}

// Returns float32 for half types, whose states and arithmetic are in float32.
constexpr DType compute_type(DType type) { return type == DType::f16 || type == DType::bf16 ? DType::f32 : type; }

}  // namespace spikeforge
