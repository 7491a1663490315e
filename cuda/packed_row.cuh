// Spikes as bits: small integers, 0 and 1 in one bit each, or 0 to 15 in four.
//
// Short names: F type of the arithmetic; W neurons per thread.
#pragma once

#include "cuda/rows.cuh"

namespace spikeforge {

// Returns the bits of the value. If the value cannot be stored as bits, returns 0 and sets all_legal to false.
template <int bits, class F> __device__ __forceinline__ unsigned bits_of(F value, bool& all_legal) {
  constexpr int most = (1 << bits) - 1;
  const bool is_within = value >= F(0) && value <= F(most);  // false for NaN
  const unsigned whole = is_within ? static_cast<unsigned>(value) : 0;
  const bool is_legal = is_within && static_cast<F>(whole) == value;
  all_legal = all_legal && is_legal;
  return is_legal ? whole : 0;
}

// A thread's part of a row of bits, row by row. Threads that share a byte are neighbours in a warp, and process the
// same steps of the same row: rows, and the first element of a warp, start at whole bytes.
template <class Neurons, int W, int bits> struct PackedRow {
  static constexpr int beside = Neurons::stride == 1 ? W : 1;  // neighbouring neurons of a thread
  static constexpr int bits_of_thread = beside * bits;
  static constexpr int sharing = bits_of_thread < 8 ? 8 / bits_of_thread : 1;  // threads that share a byte
  static constexpr int bytes = bits_of_thread < 8 ? 1 : bits_of_thread / 8;
  Cursor<unsigned char> row;
  unsigned char* valid;
  bool is_mine;  // false: another thread writes the byte

  __device__ __forceinline__ PackedRow(unsigned char* packed, unsigned char* valid, long long neurons, Neurons n)
      : row{packed + n.first * bits / 8, neurons * bits / 8},
        valid(valid),
        is_mine(threadIdx.x % sharing == 0 && (Neurons::stride != 1 || n.own(0))) {}

  // `F` is the type of arithmetic.
  template <class F, class Values> __device__ __forceinline__ void store(const Values& y) {
    F values[W];
    y.unpack(values);
    unsigned char* const to = row.next();
    bool all_legal = true;
#pragma unroll
    for (int first = 0; first < W; first += beside) {
      unsigned word = 0;
#pragma unroll
      for (int k = 0; k < beside; ++k) word |= bits_of<bits>(values[first + k], all_legal) << (k * bits);
      word = joined(word);
      if (!is_mine) continue;
      Pack<unsigned char, bytes, true> pack;
#pragma unroll
      for (int b = 0; b < bytes; ++b) pack.lane[b] = static_cast<unsigned char>(word >> (8 * b));
      Lanes<bytes, true>::store(to + first * Neurons::stride * bits / 8, pack);
    }
    if (!all_legal) *valid = 0;
  }

 private:
  // Combines the threads that share a byte.
  static __device__ __forceinline__ unsigned joined(unsigned word) {
    const unsigned share = threadIdx.x % sharing;
    const unsigned together = ((1u << sharing) - 1) << (threadIdx.x % 32 - share);
    word <<= share * bits_of_thread;
#pragma unroll
    for (int other = 1; other < sharing; other *= 2) word |= __shfl_xor_sync(together, word, other);
    return word;
  }
};

template <class Neurons, int W> struct PackedRow<Neurons, W, 0> {
  __device__ __forceinline__ PackedRow(unsigned char*, unsigned char*, long long, Neurons) {}
  template <class F, class Values> __device__ __forceinline__ void store(const Values&) {}
};

}  // namespace spikeforge
