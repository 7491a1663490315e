// The view of a tensor in the CPU source of a custom operator, with the names of its CUDA source (cuda/custom_op.cuh).
// It is compiled by the host compiler, after the names of the call's dtypes.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>

namespace spikeforge {

constexpr int most_array_dimensions = 8;

template <class T> struct Array {
  T* data;  // null for an optional tensor that was not given
  long long numel;
  long long dim;
  long long sizes[most_array_dimensions];

  Array(void* elements, std::int64_t dimensions, const std::int64_t* size_of)
      : data(static_cast<T*>(elements)), numel(1), dim(dimensions), sizes{} {
    for (int d = 0; d < dim; ++d) numel *= sizes[d] = size_of[d];
    if (elements == nullptr && dim == 0) numel = 0;
  }
  T& operator[](long long i) const { return data[i]; }
  long long size(int d) const { return sizes[d]; }
};

template <class To, class From> To convert(From value) { return static_cast<To>(value); }

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

}  // namespace spikeforge
