// Spikes as bits: numbers 0 and 1 in a bit each, or 0 to 15 in four, number i of a byte in its bits from i * bits on.
//
// Short names: T stored type; F type of the arithmetic.
#pragma once

#include "csrc/kernels/layer/arguments.h"
#include "cuda/packed_row.cuh"
#include "cuda/rows.cuh"

namespace spikeforge {
namespace layers {

// A thread processes `accesses` times `lanes` numbers, a block's width apart. Threads whose numbers share a byte are
// neighbours.
template <class T, class F, int bits, int lanes> struct SpikeBits {
  static constexpr int accesses = 4;
  static constexpr int bits_of_access = bits * lanes;
  static constexpr int bytes = bits_of_access < 8 ? 1 : bits_of_access / 8;
  static constexpr int sharing = bits_of_access < 8 ? 8 / bits_of_access : 1;  // threads of a byte
  static constexpr int most = (1 << bits) - 1;
  using Numbers = Lanes<lanes, true>;
  using Bytes = Lanes<bytes, true>;

  static __device__ __forceinline__ long long first_of(int access) {
    return ((static_cast<long long>(blockIdx.x) * accesses + access) * blockDim.x + threadIdx.x) * lanes;
  }

  static __device__ __forceinline__ void pack(const BitsArguments& a) {
    Pack<T, lanes, true> numbers[accesses];
#pragma unroll
    for (int i = 0; i < accesses; ++i) {
      const T* const from = static_cast<const T*>(a.from) + first_of(i);
      numbers[i].fill(convert<T>(F(0)));
      if (first_of(i) + lanes <= a.count) {
        numbers[i] = Numbers::load(from);
      } else {
        F rest[lanes] = {};
        for (int k = 0; k < lanes; ++k)
          if (first_of(i) + k < a.count) rest[k] = convert<F>(from[k]);
        numbers[i].pack(rest);
      }
    }
    bool all_legal = true;
#pragma unroll
    for (int i = 0; i < accesses; ++i) {
      F values[lanes];
      numbers[i].unpack(values);
      unsigned word = 0;
#pragma unroll
      for (int k = 0; k < lanes; ++k) word |= bits_of<bits>(values[k], all_legal) << (k * bits);
      const int share = threadIdx.x % sharing;
      word <<= share * bits_of_access;
#pragma unroll
      for (int other = 1; other < sharing; other *= 2) word |= __shfl_xor_sync(0xffffffffu, word, other);
      store(static_cast<unsigned char*>(a.to), first_of(i), a.count, word, share == 0);
    }
    if (!all_legal) *a.valid = 0;
  }

  static __device__ __forceinline__ void store(unsigned char* to, long long first, long long count, unsigned word,
                                               bool is_mine) {
    const long long begin = first * bits / 8, end = (count * bits + 7) / 8;
    if (!is_mine || begin >= end) return;
    Pack<unsigned char, bytes, true> pack;
#pragma unroll
    for (int b = 0; b < bytes; ++b) pack.lane[b] = static_cast<unsigned char>(word >> (8 * b));
    if (begin + bytes <= end)
      Bytes::store(to + begin, pack);
    else
      for (int b = 0; begin + b < end; ++b) to[begin + b] = pack.lane[b];
  }

  static __device__ __forceinline__ void unpack(const BitsArguments& a) {
    const F nan = __int_as_float(0x7fffffff);
    const bool is_valid = *a.valid != 0;
    Pack<unsigned char, bytes, true> packed[accesses];
#pragma unroll
    for (int i = 0; i < accesses; ++i) {
      const long long begin = first_of(i) * bits / 8, end = (a.count * bits + 7) / 8;
      const unsigned char* const from = static_cast<const unsigned char*>(a.from) + begin;
      packed[i].fill(0);
      if (begin + bytes <= end)
        packed[i] = Bytes::load(from);
      else
        for (int b = 0; b < bytes; ++b)
          if (begin + b < end) packed[i].lane[b] = from[b];
    }
#pragma unroll
    for (int i = 0; i < accesses; ++i) {
      unsigned word = 0;
#pragma unroll
      for (int b = 0; b < bytes; ++b) word |= static_cast<unsigned>(packed[i].lane[b]) << (8 * b);
      word >>= threadIdx.x % sharing * bits_of_access;
      F values[lanes];
#pragma unroll
      for (int k = 0; k < lanes; ++k)
        values[k] = is_valid ? static_cast<F>(word >> (k * bits) & static_cast<unsigned>(most)) : nan;
      Pack<T, lanes, true> numbers;
      numbers.pack(values);
      T* const to = static_cast<T*>(a.to) + first_of(i);
      if (first_of(i) + lanes <= a.count)
        Numbers::store(to, numbers);
      else
        for (int k = 0; k < lanes; ++k)
          if (first_of(i) + k < a.count) to[k] = convert<T>(values[k]);
    }
  }
};

}  // namespace layers
}  // namespace spikeforge
