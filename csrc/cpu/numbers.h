// Conversion of rows of numbers from and to the type in which they are stored.
#pragma once

#include "csrc/base/dtype.h"
#include "csrc/cpu/operations.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Converts a granule of numbers.
template <class T, class Stored> struct Granule {
  static void load(const Stored* from, T* to) {
    using V = at::vec::Vectorized<float>;
    for (std::int64_t i = 0; i < granule; i += V::size()) {
      V x;
      if constexpr (std::is_same_v<Stored, c10::Half>)
        at::vec::load_fp32_from_fp16(from + i, x);
      else
        at::vec::load_fp32_from_bf16(from + i, x);
      x.store(to + i);
    }
  }
  static void store(const T* from, Stored* to) {
    using V = at::vec::Vectorized<float>;
    for (std::int64_t i = 0; i < granule; i += 2 * V::size())
      at::vec::convert_from_float<Stored>(V::loadu(from + i), V::loadu(from + i + V::size())).store(to + i);
  }
};

// Loads numbers. `to` has space up to the end of the last granule, which is filled with zeros.
template <class T, class Stored> void load_numbers(const Stored* from, T* to, std::int64_t count) {
  const std::int64_t padded = (count + granule - 1) / granule * granule;
  if constexpr (std::is_same_v<T, Stored>) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
    std::memset(to + count, 0, static_cast<std::size_t>(padded - count) * sizeof(T));
  } else {
    const std::int64_t whole = count / granule * granule;
    for (std::int64_t i = 0; i < whole; i += granule) Granule<T, Stored>::load(from + i, to + i);
    if (whole == count) return;
    Stored rest[granule] = {};
    std::memcpy(static_cast<void*>(rest), from + whole, static_cast<std::size_t>(count - whole) * sizeof(Stored));
    Granule<T, Stored>::load(rest, to + whole);
  }
}

template <class T, class Stored> void store_numbers(const T* from, Stored* to, std::int64_t count) {
  if constexpr (std::is_same_v<T, Stored>) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    const std::int64_t whole = count / granule * granule;
    for (std::int64_t i = 0; i < whole; i += granule) Granule<T, Stored>::store(from + i, to + i);
    if (whole == count) return;
    Stored rest[granule];
    Granule<T, Stored>::store(from + whole, rest);
    std::memcpy(static_cast<void*>(to + whole), rest, static_cast<std::size_t>(count - whole) * sizeof(Stored));
  }
}

// Calls f with a value of the type of a state or a parameter, if the arithmetic is in T: T, or with float also a half
// type.
template <class T, class F> auto with_type(DType type, F&& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::f16) return f(c10::Half());
    if (type == DType::bf16) return f(c10::BFloat16());
  }
  return f(T());
}

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
