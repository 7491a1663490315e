// The 16-bit types of kernels: storage and conversion only. Arithmetic is in float. Embedded here so that run-time
// compilation needs no CUDA header.
//
// Short names: T half type.
#pragma once

namespace spikeforge {

struct f16 {
  unsigned short bits;
};

struct bf16 {
  unsigned short bits;
};

template <class To, class From> __device__ __forceinline__ To convert(From x) { return static_cast<To>(x); }

template <> __device__ __forceinline__ float convert<float, f16>(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <> __device__ __forceinline__ f16 convert<f16, float>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

template <> __device__ __forceinline__ float convert<float, bf16>(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

template <> __device__ __forceinline__ bf16 convert<bf16, float>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// Two halves in a word, the first in the lower bits.
template <class T> __device__ __forceinline__ void unpack_pair(unsigned pair, float& first, float& second);
template <> __device__ __forceinline__ void unpack_pair<f16>(unsigned pair, float& first, float& second) {
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(first), "=f"(second)
      : "r"(pair));
}
// Written in assembly: the compiler moves shifts of C++ to the load of the pair, and rows in flight then need twice the
// registers (PLIF's backward pass of one segment spilled 1200 bytes).
template <> __device__ __forceinline__ void unpack_pair<bf16>(unsigned pair, float& first, float& second) {
  asm("{.reg .b32 a, b; shl.b32 a, %2, 16; and.b32 b, %2, 0xffff0000; mov.b32 %0, a; mov.b32 %1, b;}"
      : "=f"(first), "=f"(second)
      : "r"(pair));
}

template <class T> __device__ __forceinline__ unsigned pack_pair(float first, float second) {
  return convert<T>(first).bits | static_cast<unsigned>(convert<T>(second).bits) << 16;
}
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ unsigned pack_pair<f16>(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  return pair;
}
template <> __device__ __forceinline__ unsigned pack_pair<bf16>(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  return pair;
}
#endif

}  // namespace spikeforge
