// Sums that a block of a cooperative launch publishes for others, in which each word is its own flag: readers poll the
// word, and wait for no other. Relaxed accesses suffice: a word carries its value, and no other read depends on it.
// Words that are not yet published are `unpublished`; a grid barrier separates clearing and polling.
//
// Short names: S sums per channel.
#pragma once

namespace spikeforge {

template <int S> struct alignas(S % 2 == 0 ? 8 : 4) PublishedSums {
  static constexpr unsigned unpublished = 0xffffffff, other_nan = 0x7fffffff;  // two NaN patterns
  unsigned word[S];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int s = 0; s < S; ++s) word[s] = unpublished;
  }

  // Publishes `sums` as the sums from the s-th on; those after the last are dropped.
  template <int n> __device__ __forceinline__ void publish(int s, const float (&sums)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (s + i < S) publish(&word[s + i], sums[i]);
  }

  // Adds up `count` sums, at(first), at(first + stride), ...; waits until all of them are published. `at_once` are
  // loaded together.
  template <int at_once, class At>
  static __device__ __forceinline__ void wait_and_add(int first, int count, int stride, float (&sums)[S], At&& at) {
#pragma unroll 1
    for (int i0 = first; i0 < count; i0 += at_once * stride) {
      PublishedSums found[at_once];
      bool are_there;
      do {
        are_there = true;
#pragma unroll
        for (int u = 0; u < at_once; ++u)
          if (i0 + u * stride < count)
            found[u].poll(*at(i0 + u * stride));
          else
            found[u] = {};
#pragma unroll
        for (int u = 0; u < at_once; ++u)
#pragma unroll
          for (int s = 0; s < S; ++s) are_there = are_there && found[u].word[s] != unpublished;
      } while (!are_there);
#pragma unroll
      for (int u = 0; u < at_once; ++u)
#pragma unroll
        for (int s = 0; s < S; ++s) sums[s] += __uint_as_float(found[u].word[s]);
    }
  }

 private:
  static __device__ __forceinline__ void publish(unsigned* to, float sum) {
    const unsigned bits = __float_as_uint(sum);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                 :
                 : "l"(to), "r"(bits == unpublished ? other_nan : bits)
                 : "memory");
  }

  __device__ __forceinline__ void poll(const PublishedSums& at) {
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
