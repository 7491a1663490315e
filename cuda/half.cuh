// The 16-bit types as kernels see them: storage and conversion, nothing else. Arithmetic is in float. Embedded here so
// that run-time compilation needs no CUDA header.
#pragma once

namespace spikeforge {

struct f16 {
  unsigned short bits;
};

struct bf16 {
  unsigned short bits;
};

template <class To, class From>
__device__ __forceinline__ To convert(From x) {
  return static_cast<To>(x);
}

template <>
__device__ __forceinline__ float convert<float, f16>(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <>
__device__ __forceinline__ f16 convert<f16, float>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

template <>
__device__ __forceinline__ float convert<float, bf16>(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

template <>
__device__ __forceinline__ bf16 convert<bf16, float>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

}  // namespace spikeforge
