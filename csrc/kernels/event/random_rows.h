// A random matrix that is not stored: whoever reads it draws its connections again, the same ones on every device, in
// both orders and for any number of vectors. C++17 for the host compiler and NVRTC.
//
// Every entry is a connection with probability `prob`, whatever the others are. Rows are cut into pieces of `width`
// columns (a power of two, set by prob alone), each with a stream of random numbers of its own (PCG32, O'Neill 2014),
// whose state begins at a hash of seed, row and piece. From one connection to the next there are
//   1 + floor(surprise(u) * columns_a_bit)      surprise(u) = -log2(u), columns_a_bit = -1 / log2(1 - prob)
// columns: the geometric distribution. A weight's own random number is a hash of the piece and the column. All of it is
// whole numbers, and float operations that are rounded alike everywhere: no contraction, no library function.
#pragma once

#include <spikeforge/kernels/event/arguments.h>
#include <spikeforge/neuron/portable.h>

// Of functions that are no templates.
#if defined(__CUDACC__)
#define SPIKEFORGE_PLAIN_FN SPIKEFORGE_FN
#else
#define SPIKEFORGE_PLAIN_FN inline
#include <cstring>
#endif

namespace spikeforge {
namespace event {

SPIKEFORGE_PLAIN_FN unsigned bits_of(float x) {
#if defined(__CUDACC__)
  return __float_as_uint(x);
#else
  unsigned bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

SPIKEFORGE_PLAIN_FN float float_of(unsigned bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// All 64 bits depend on all: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
SPIKEFORGE_PLAIN_FN unsigned long long mixed(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr unsigned long long golden = 0x9e3779b97f4a7c15ULL;  // 2^64 over the golden ratio, odd

struct Stream {
  unsigned long long state;

  SPIKEFORGE_FN unsigned next() {
    const unsigned long long old = state;
    state = old * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto x = static_cast<unsigned>(((old >> 18) ^ old) >> 27);
    const auto turn = static_cast<unsigned>(old >> 59);
    return x >> turn | x << ((32 - turn) & 31);
  }
};

// log2((1 + s) / (1 - s)) for |s| <= 0.172, to a float's precision.
SPIKEFORGE_PLAIN_FN float log2_of_ratio(float s) {
  const float q = s * s;
  return s * (2.885390082F + q * (0.9617966939F + q * (0.5770780164F + q * (0.4121985831F + q * 0.3205989980F))));
}

// -log2((u + 1) / 2^32), from 0 to 32. Close to 0 it is as precise as anywhere: small probabilities live there.
SPIKEFORGE_PLAIN_FN float surprise(unsigned u) {
  const unsigned below = ~u;
  if (below < 1257966796U) {  // (u + 1) / 2^32 is above sqrt(1/2)
    const float y = static_cast<float>(below) * 2.3283064365386963e-10F;
    return log2_of_ratio(y / (2.0F - y));
  }
  const unsigned bits = bits_of(static_cast<float>(u + 1));
  int exponent = static_cast<int>(bits >> 23) - 127;
  float m = float_of((bits & 0x7fffffU) | 0x3f800000U);
  if (m > 1.41421354F) {
    m *= 0.5F;
    ++exponent;
  }
  return static_cast<float>(32 - exponent) - log2_of_ratio((m - 1.0F) / (m + 1.0F));
}

// Above 0 and below 1.
SPIKEFORGE_PLAIN_FN float uniform_of(unsigned u) {
  return (static_cast<float>(u >> 9) + 0.5F) * 1.1920928955078125e-7F;
}

// The normal quantile (Wichura, Applied Statistics 37, 1988, AS 241, PPND7: seven digits) of a uniform number.
SPIKEFORGE_PLAIN_FN float normal_of(float u) {
  const float q = u - 0.5F;
  if (abs(q) <= 0.425F) {
    const float r = 0.180625F - q * q;
    return q * (((59.109374720F * r + 159.29113202F) * r + 50.434271938F) * r + 3.3871327179F) /
           (((67.187563600F * r + 78.757757664F) * r + 17.895169469F) * r + 1.0F);
  }
  // ln of a tail's probability, which is a multiple of 2^-24 below 0.075.
  const float tail = q < 0 ? u : 1.0F - u;
  const float t = sqrt(surprise(static_cast<unsigned>(tail * 4294967296.0F) - 1U) * 0.693147181F) - 1.6F;
  const float z = (((0.17023821103F * t + 1.3067284816F) * t + 2.7568153900F) * t + 1.4234372777F) /
                  ((0.12021132975F * t + 0.73700164250F) * t + 1.0F);
  return q < 0 ? -z : z;
}

// The largest |z| that normal_of gives is below this.
constexpr double largest_normal = 5.5;

// The random number of a connection's weight; 0 of a constant.
template <Distribution distribution>
SPIKEFORGE_FN float draw(unsigned long long key, Int column) {
  if constexpr (distribution == Distribution::constant) {
    return 0.0F;
  } else {
    const unsigned long long hash = mixed(key ^ (golden * static_cast<unsigned long long>(column + 1)));
    const float u = uniform_of(static_cast<unsigned>(hash >> 32));
    return distribution == Distribution::normal ? normal_of(u) : u;
  }
}

template <Distribution distribution, class C>
SPIKEFORGE_FN C weight_of(C first, C second, float drawn) {
  if constexpr (distribution == Distribution::constant)
    return first;
  else if constexpr (distribution == Distribution::uniform)
    return first + (second - first) * static_cast<C>(drawn);
  else
    return first + second * static_cast<C>(drawn);
}

// Calls visit(column, drawn) for every connection of a piece, in the order of columns.
template <Distribution distribution, class Visit>
SPIKEFORGE_FN void for_each_connection(const RandomRows& matrix, Int row, Int piece, Visit&& visit) {
  const unsigned long long of_row = mixed(matrix.seed + golden * static_cast<unsigned long long>(row + 1));
  const unsigned long long key = mixed(of_row + golden * static_cast<unsigned long long>(piece + 1));
  Stream stream{key};
  const Int first = piece * matrix.width;
  const Int end = first + matrix.width < matrix.cols ? first + matrix.width : matrix.cols;
  Int column = first;
  while (true) {
    const float gap = surprise(stream.next()) * matrix.columns_a_bit;
    if (!(gap < static_cast<float>(end - column))) return;
    column += static_cast<Int>(gap);
    if (column >= end) return;
    visit(column, draw<distribution>(key, column));
    ++column;
  }
}

}  // namespace event
}  // namespace spikeforge

#undef SPIKEFORGE_PLAIN_FN
