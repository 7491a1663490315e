// Random numbers with the same bits on every device: a counter-based generator, and distributions. C++17.
//
// All computations use integers, and float operations that are rounded identically on every device: no contraction, no
// library function.
#pragma once

#include "csrc/neuron/portable.h"

#if !defined(__CUDACC__)
#include <cstring>
#endif

namespace spikeforge {
#if defined(CPU_CAPABILITY)
// Compiled once for each instruction set: no two of them share a symbol.
inline namespace CPU_CAPABILITY {
#endif

// Returns the product with all 64 bits.
SPIKEFORGE_PLAIN_FN unsigned long long wide_product(unsigned a, unsigned b) {
#if defined(__CUDACC__)
  // A single instruction. For a product of widened numbers, the compiler generates a second one, which adds 0.
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return static_cast<unsigned long long>(a) * b;
#endif
}

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011): four random words for each counter and key.
struct PhiloxWords {
  unsigned word[4];
};

SPIKEFORGE_PLAIN_FN PhiloxWords philox(PhiloxWords counter, unsigned long long key) {
  auto low = static_cast<unsigned>(key), high = static_cast<unsigned>(key >> 32);
  unsigned(&c)[4] = counter.word;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = wide_product(0xd2511f53U, c[0]), second = wide_product(0xcd9e8d57U, c[2]);
    c[0] = static_cast<unsigned>(second >> 32) ^ c[1] ^ low;
    c[1] = static_cast<unsigned>(second);
    c[2] = static_cast<unsigned>(first >> 32) ^ c[3] ^ high;
    c[3] = static_cast<unsigned>(first);
    low += 0x9e3779b9U;
    high += 0xbb67ae85U;
  }
  return counter;
}

SPIKEFORGE_PLAIN_FN unsigned as_bits(float x) {
#if defined(__CUDACC__)
  return __float_as_uint(x);
#else
  unsigned bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

SPIKEFORGE_PLAIN_FN float as_float(unsigned bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// Returns a b + c, rounded once on every device.
SPIKEFORGE_PLAIN_FN float fused(float a, float b, float c) {
#if defined(__CUDACC__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// Returns c + x (more[0] + x (more[1] + ...)).
SPIKEFORGE_PLAIN_FN float fused_polynomial(float, float c) { return c; }
template <class... More> SPIKEFORGE_FN float fused_polynomial(float x, float c, More... more) {
  return fused(fused_polynomial(x, more...), x, c);
}

// Returns log2((1 + s) / (1 - s)) for |s| <= 0.172, to a float's precision.
SPIKEFORGE_PLAIN_FN float log2_of_ratio(float s) {
  const float q = s * s;
  return s * (2.885390082F + q * (0.9617966939F + q * (0.5770780164F + q * (0.4121985831F + q * 0.3205989980F))));
}

// Returns exponent - log2(x) of a normal number x above 0. It uses a select rather than a branch, since the numbers of
// a warp or a vector are in both cases.
SPIKEFORGE_PLAIN_FN float minus_log2(int exponent, float x) {
  const unsigned bits = as_bits(x);
  const float m = as_float((bits & 0x7fffffU) | 0x3f800000U);
  const bool is_large = m > 1.41421354F;
  const float scaled = is_large ? 0.5F * m : m;
  exponent -= static_cast<int>(bits >> 23) - 127 + (is_large ? 1 : 0);
  return static_cast<float>(exponent) - log2_of_ratio((scaled - 1.0F) / (scaled + 1.0F));
}

// Returns -log2((u + 1) / 2^32), from 0 to 32. The relative precision is kept close to 0, as small probabilities
// require.
SPIKEFORGE_PLAIN_FN float surprise(unsigned u) {
  const unsigned below = ~u;
  if (below < 1257966796U) {  // (u + 1) / 2^32 is above sqrt(1/2)
    const float y = static_cast<float>(below) * 2.3283064365386963e-10F;
    return log2_of_ratio(y / (2.0F - y));
  }
  return minus_log2(32, static_cast<float>(u + 1));
}

// Returns a number above 0 and below 1.
SPIKEFORGE_PLAIN_FN float uniform_of(unsigned u) {
  return (static_cast<float>(u >> 9) + 0.5F) * 1.1920928955078125e-7F;
}

// Returns the normal quantile (Wichura, Applied Statistics 37, 1988, AS 241, PPND7: seven digits) of a uniform number.
// Both cases are computed, and share the division, since the numbers of a warp or a vector are in both cases.
SPIKEFORGE_PLAIN_FN float normal_of(float u) {
  const float q = u - 0.5F;
  const bool is_central = abs(q) <= 0.425F;
  const float r = 0.180625F - q * q;
  const float central = q * (((59.109374720F * r + 159.29113202F) * r + 50.434271938F) * r + 3.3871327179F);
  const float below_central = ((67.187563600F * r + 78.757757664F) * r + 17.895169469F) * r + 1.0F;
  // The probability of a tail is a multiple of 2^-24.
  const float tail = q < 0 ? u : 1.0F - u;
  const float t = sqrt(minus_log2(0, tail) * 0.693147181F) - 1.6F;
  const float outer = ((0.17023821103F * t + 1.3067284816F) * t + 2.7568153900F) * t + 1.4234372777F;
  const float below_outer = (0.12021132975F * t + 0.73700164250F) * t + 1.0F;
  return (is_central ? central : q < 0 ? -outer : outer) / (is_central ? below_central : below_outer);
}

// An upper bound of |z| for the results z of normal_of.
constexpr double largest_normal = 5.5;

#if defined(CPU_CAPABILITY)
}  // namespace CPU_CAPABILITY
#endif
}  // namespace spikeforge
