// Products of tensor cores, D += A B with 16-bit numbers and float32 sums.
//
// In m16n8k16, lane 4 q + c of a warp holds: rows q and q + 8 and columns 2 c and 2 c + 1 of D, in d[2 * (row / 8) +
// column % 2]; two numbers of A that are one k apart in each word, rows q and q + 8 and k = 2 c and 2 c + 8, in a[row /
// 8 + 2 * (k / 8)]; column q and k = 2 c and 2 c + 8 of B, in b[k / 8].
#pragma once

#include "cuda/half.cuh"

namespace spikeforge {

#define SPIKEFORGE_MULTIPLY_ADD(type)                                                                                 \
  template <>                                                                                                         \
  __device__ __forceinline__ void multiply_add<type>(float(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type                                                      \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                        \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                              \
  }
template <class Half>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
SPIKEFORGE_MULTIPLY_ADD(f16)
SPIKEFORGE_MULTIPLY_ADD(bf16)
#undef SPIKEFORGE_MULTIPLY_ADD

// Splits two values into pairs of 16-bit values whose sums they are: one for a 16-bit type, three bf16 for float32,
// which together have its 24 bits.
template <class Half, int pieces>
__device__ __forceinline__ void split_pair(float first, float second, unsigned (&words)[pieces]) {
#pragma unroll
  for (int p = 0; p < pieces; ++p) {
    words[p] = pack_pair<Half>(first, second);
    float rounded_first, rounded_second;
    unpack_pair<Half>(words[p], rounded_first, rounded_second);
    first -= rounded_first;
    second -= rounded_second;
  }
}

}  // namespace spikeforge
