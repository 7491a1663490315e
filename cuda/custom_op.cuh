// The view of a tensor in a kernel of a custom operator: its elements in logical order, and its sizes.
#pragma once

#include "cuda/half.cuh"

namespace spikeforge {

constexpr int most_array_dimensions = 8;

template <class T> struct Array {
  T* data;  // null for an optional tensor that was not given
  long long numel;
  long long dim;
  long long sizes[most_array_dimensions];

  __device__ T& operator[](long long i) const { return data[i]; }
  __device__ long long size(int d) const { return sizes[d]; }
};

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

}  // namespace spikeforge
