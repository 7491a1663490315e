// Sums that one block of a cooperative launch tells others, each word its own sign that it is there: who needs it waits
// for it and for nothing else. Words that nobody has told yet are `absent`, which the host or the kernel sees to before
// any block may look.
#pragma once

#include <spikeforge/cuda/half.cuh>

namespace spikeforge {

template <int S>
struct alignas(S % 2 == 0 ? 8 : 4) ToldSums {
  static constexpr unsigned absent = 0xffffffff;  // a NaN that no sum is
  unsigned word[S];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int s = 0; s < S; ++s) word[s] = absent;
  }

  // So many sums from the s-th on.
  template <int n>
  __device__ __forceinline__ void tell(int s, const float (&sums)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (s + i < S) tell(&word[s + i], sums[i]);
  }

  // The sum of every apart-th of `count` from the first on, once all of them have been told; at(i) is the i-th's place,
  // and so many are asked for at once.
  template <int at_once, class At>
  static __device__ __forceinline__ void add_up(int first, int count, int apart, float (&sums)[S], At&& at) {
#pragma unroll 1
    for (int i0 = first; i0 < count; i0 += at_once * apart) {
      ToldSums told[at_once];
      bool are_there;
      do {
        are_there = true;
#pragma unroll
        for (int u = 0; u < at_once; ++u)
          if (i0 + u * apart < count)
            told[u].look(*at(i0 + u * apart));
          else
            told[u] = {};
#pragma unroll
        for (int u = 0; u < at_once; ++u)
#pragma unroll
          for (int s = 0; s < S; ++s) are_there = are_there && told[u].word[s] != absent;
      } while (!are_there);
#pragma unroll
      for (int u = 0; u < at_once; ++u)
#pragma unroll
        for (int s = 0; s < S; ++s) sums[s] += __uint_as_float(told[u].word[s]);
    }
  }

 private:
  static __device__ __forceinline__ void tell(unsigned* to, float sum) {
    const unsigned bits = __float_as_uint(sum);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                 :
                 : "l"(to), "r"(bits == absent ? 0x7fffffffu : bits)
                 : "memory");
  }

  __device__ __forceinline__ void look(const ToldSums& at) {
    if constexpr (S % 2 == 0) {
#pragma unroll
      for (int s = 0; s < S; s += 2)
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(word[s]), "=r"(word[s + 1])
                     : "l"(at.word + s)
                     : "memory");
    } else {
#pragma unroll
      for (int s = 0; s < S; ++s)
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word[s]) : "l"(at.word + s) : "memory");
    }
  }
};

}  // namespace spikeforge
