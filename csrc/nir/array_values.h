#pragma once
#include "csrc/nir/array.h"

namespace spikeforge::nir {

struct Half {
  std::uint16_t bits;
  explicit operator double() const { return float_of_half(bits); }
};

struct Boolean {
  std::uint8_t byte;
  explicit operator double() const { return byte != 0; }
};

// Calls the function with a zero of the C++ type of a dtype.
template <class Function> decltype(auto) with_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::boolean: return function(Boolean{});
    case DType::int8: return function(std::int8_t{});
    case DType::int16: return function(std::int16_t{});
    case DType::int32: return function(std::int32_t{});
    case DType::int64: return function(std::int64_t{});
    case DType::uint8: return function(std::uint8_t{});
    case DType::uint16: return function(std::uint16_t{});
    case DType::uint32: return function(std::uint32_t{});
    case DType::uint64: return function(std::uint64_t{});
    case DType::float16: return function(Half{});
    case DType::float32: return function(float{});
    case DType::float64: return function(double{});
  }
  __builtin_unreachable();
}

// Returns the elements of an array, with the type that with_type passes.
template <class T> std::span<const T> values_of(const Array& array) {
  return {reinterpret_cast<const T*>(array.bytes().data()), static_cast<std::size_t>(array.count())};
}
template <class T> std::span<T> writable_values_of(Array& array) {
  return {reinterpret_cast<T*>(array.writable_bytes().data()), static_cast<std::size_t>(array.count())};
}

}  // namespace spikeforge::nir
