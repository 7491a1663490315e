// Reading and writing rows: the W neurons of a thread at one step.
//
// Short names: T stored type; F type of the arithmetic; W neurons per thread.
#pragma once

#include "cuda/half.cuh"

namespace spikeforge {

// The source type of a tensor that a kernel reads.
enum class Source { absent, f16, bf16, f32, f64, i32 };

// The check of a parameter's value: none; that it is not NaN; or that it is within two bounds.
enum class Legal { unchecked, any, bounded };

// The neurons that share a value of a tensor parameter: all; those of a warp; those of a channel; or a single neuron.
enum class Spread { one, by_warp, by_channel, by_neuron };

// The rows of a [T, N] sequence; the stride is in elements and may be 0.
struct Rows {
  const void* data;
  long long time_stride;
};

// The value of neuron i is data[(i / inner) % count], or the scalar: a double, because with scalars of the arithmetic's
// type the compiler scheduled backward passes worse (Izhikevich, float32, on an H200: 1.15 of the bytes' time rather
// than 1.05).
struct ParamSource {
  const void* data;
  double number;
  long long inner;
  long long count;
};

// The values of a thread's neurons at one step, in their stored type.
template <class T, int W, bool neighbours> struct alignas(neighbours ? sizeof(T) * W : sizeof(T)) Pack {
  T lane[W];

  __device__ __forceinline__ void fill(T value) {
#pragma unroll
    for (int k = 0; k < W; ++k) lane[k] = value;
  }

  template <class F> __device__ __forceinline__ void unpack(F (&values)[W]) const {
#pragma unroll
    for (int k = 0; k < W; ++k) values[k] = convert<F>(lane[k]);
  }

  template <class F> __device__ __forceinline__ void pack(const F (&values)[W]) {
#pragma unroll
    for (int k = 0; k < W; ++k) lane[k] = convert<T>(values[k]);
  }
};

// Neighbouring halves stay in the loaded words until they are used: unpacking them earlier would wait for the load.
template <class Half, int W> struct alignas(2 * W) PairPack {
  unsigned pair[W / 2];

  __device__ __forceinline__ void fill(Half value) {
#pragma unroll
    for (int k = 0; k < W / 2; ++k) pair[k] = value.bits * 0x10001u;
  }

  __device__ __forceinline__ void unpack(float (&values)[W]) const {
#pragma unroll
    for (int k = 0; k < W / 2; ++k) unpack_pair<Half>(pair[k], values[2 * k], values[2 * k + 1]);
  }

  __device__ __forceinline__ void pack(const float (&values)[W]) {
#pragma unroll
    for (int k = 0; k < W / 2; ++k) pair[k] = pack_pair<Half>(values[2 * k], values[2 * k + 1]);
  }
};
template <> struct Pack<f16, 2, true> : PairPack<f16, 2> {};
template <> struct Pack<f16, 4, true> : PairPack<f16, 4> {};
template <> struct Pack<bf16, 2, true> : PairPack<bf16, 2> {};
template <> struct Pack<bf16, 4, true> : PairPack<bf16, 4> {};
template <> struct Pack<f16, 8, true> : PairPack<f16, 8> {};
template <> struct Pack<bf16, 8, true> : PairPack<bf16, 8> {};

// Stores in accesses of 16 or 8 bytes. Otherwise the compiler splits some of a loop's stores into words, each a
// separate access (batch norm and LIF, 26 MB of float32 on an H200: 10.6 passes rather than 9.3).
template <class Values> __device__ __forceinline__ void store_whole(void* to, const Values& values) {
#if __CUDA_ARCH__ >= 800
  constexpr int words = sizeof(Values) / 4;
  unsigned word[words];
  memcpy(word, &values, sizeof values);
  if constexpr (words % 4 == 0) {
#pragma unroll
    for (int i = 0; i < words; i += 4)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<unsigned*>(to) + i), "r"(word[i]),
                   "r"(word[i + 1]), "r"(word[i + 2]), "r"(word[i + 3]));
  } else {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]));
  }
#else
  *static_cast<Values*>(to) = values;
#endif
}

// The neurons that a thread owns. Neighbours are read in one access, if rows start at a multiple of W elements.
// Otherwise the thread's neurons are 32 elements apart: W accesses, each to 32 neighbours of the warp.
template <int W, bool neighbours, bool whole_stores = false> struct Lanes {
  static constexpr int stride = neighbours ? 1 : 32;
  static constexpr int span = neighbours ? W : 32 * W;  // neurons of a thread or, without neighbours, of a warp
  long long first, start;

  __device__ __forceinline__ long long neuron(int k) const { return first + k * stride; }

  // Threads (without neighbours, warps) that exceed the last neuron are moved back to neurons that other threads also
  // process: they write the same values to the same addresses.
  static __device__ __forceinline__ Lanes of(long long thread, long long neurons) {
    const long long start = neighbours ? thread * span : thread / 32 * span;
    const long long last = neurons - span;
    return {(start < last ? start : last) + (neighbours ? 0 : thread % 32), start};
  }

  __device__ __forceinline__ Lanes further(long long neurons) const { return {first + neurons, start + neurons}; }

  // True if no other lane owns the lane's neuron k: only then is it included in a sum.
  __device__ __forceinline__ bool own(int k) const { return neuron(k) >= start; }

  // Rounded up to whole warps.
  static __device__ __forceinline__ long long threads(long long neurons) {
    constexpr long long of_a_warp = 32 * W;
    return (neurons + of_a_warp - 1) / of_a_warp * 32;
  }

  // `p` points to the first lane.
  template <class T> static __device__ __forceinline__ Pack<T, W, neighbours> load(const T* p) {
    using Values = Pack<T, W, neighbours>;
    if constexpr (neighbours) {
      return *reinterpret_cast<const Values*>(p);
    } else {
      Values values;
#pragma unroll
      for (int k = 0; k < W; ++k) values.lane[k] = p[k * stride];
      return values;
    }
  }

  template <class T> static __device__ __forceinline__ void store(T* p, const Pack<T, W, neighbours>& values) {
    if constexpr (neighbours && whole_stores && sizeof values % 8 == 0) {
      store_whole(p, values);
    } else if constexpr (neighbours) {
      *reinterpret_cast<Pack<T, W, neighbours>*>(p) = values;
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) p[k * stride] = values.lane[k];
    }
  }
};

// A pointer into a sequence that moves row by row, forward or backward, by one addition.
template <class T> struct Cursor {
  T* at;
  long long step;

  __device__ __forceinline__ T* next() {
    T* row = at;
    at += step;
    return row;
  }
};

// Asynchronous copies to shared memory, which complete in the order of their groups.
template <int bytes> __device__ __forceinline__ void copy_to_shared(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "n"(bytes)
               : "memory");
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

// The eviction order of lines in the L2 cache: the oldest first, or those read with evict_first first. A policy is
// created at each use, in one instruction, which saves two registers.
struct CachePolicy {
  unsigned long long bits = 0;

  static __device__ __forceinline__ CachePolicy evict_normal() {
    CachePolicy policy;
#if __CUDA_ARCH__ >= 800
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy.bits));
#endif
    return policy;
  }
  static __device__ __forceinline__ CachePolicy evict_first() {
    CachePolicy policy;
#if __CUDA_ARCH__ >= 800
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy.bits));
#endif
    return policy;
  }
};

// copy_to_shared for data that is read once: copies of 16 bytes bypass the first-level cache.
template <int bytes> __device__ __forceinline__ void stream_to_shared(void* to, const void* from, CachePolicy policy) {
#if __CUDA_ARCH__ >= 800
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 :
                 : "r"(shared), "l"(from), "l"(policy.bits)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;"
                 :
                 : "r"(shared), "l"(from), "n"(bytes), "l"(policy.bits)
                 : "memory");
#else
  copy_to_shared<bytes>(to, from);
#endif
}

__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `groups` groups are in flight.
template <int groups> __device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

template <class F> __device__ __forceinline__ F load_as(Source source, const void* data, long long i) {
  switch (source) {
    case Source::f16: return convert<F>(convert<float>(static_cast<const f16*>(data)[i]));
    case Source::bf16: return convert<F>(convert<float>(static_cast<const bf16*>(data)[i]));
    case Source::f32: return convert<F>(static_cast<const float*>(data)[i]);
    case Source::f64: return convert<F>(static_cast<const double*>(data)[i]);
    case Source::i32: return convert<F>(static_cast<const int*>(data)[i]);
    default: return F(0);
  }
}

template <class F> __device__ __forceinline__ void store_as(Source target, void* data, long long i, F value) {
  switch (target) {
    case Source::f16: static_cast<f16*>(data)[i] = convert<f16>(convert<float>(value)); return;
    case Source::bf16: static_cast<bf16*>(data)[i] = convert<bf16>(convert<float>(value)); return;
    case Source::f32: static_cast<float*>(data)[i] = convert<float>(value); return;
    case Source::f64: static_cast<double*>(data)[i] = convert<double>(value); return;
    default: return;
  }
}

// The index of a neuron's value in a parameter: that of its channel, which `inner` consecutive neurons share.
struct ParamPlace {
  long long inner = 0, count = 0, channel = 0, within = 0;

  // A division costs ten times as much as step(): parameters with the same sizes share it. `wide`: i may exceed 32
  // bits; a division in 32 bits costs a tenth.
  template <bool wide> __device__ __forceinline__ void find(const ParamSource& param, long long i) {
    if (param.inner == inner && param.count == count) return;
    inner = param.inner;
    count = param.count;
    if constexpr (!wide) {
      const unsigned values = static_cast<unsigned>(i) / static_cast<unsigned>(inner);
      channel = values % static_cast<unsigned>(count);
      within = static_cast<unsigned>(i) - values * static_cast<unsigned>(inner);
    } else {
      channel = i / inner % count;
      within = i % inner;
    }
  }

  // Advances to the next neuron.
  __device__ __forceinline__ void step() {
    if (++within < inner) return;
    within = 0;
    if (++channel == count) channel = 0;
  }
};

}  // namespace spikeforge
