// Types and the walk along a row, shared by the products of a sparse matrix with events or numbers.
//
//   gather.cuh    A e   rows are summed
//   scatter.cuh   e A   rows that contribute are added to sums by columns
//   weights.cuh         changes of weights: their gradient, and plasticity
//   jit.cuh             matrices that are drawn again in each call
//   linear.cuh          dense matrices
//   deliver.cuh         A e to the ring of spikes in flight
//   check.cuh           checks that the indices of a stored matrix are in range
//
// Short names: S the Spec; X type of an entry; C type of the arithmetic; W type of a weight.
#pragma once

#include "csrc/kernels/event/arguments.h"
#include "cuda/half.cuh"

namespace spikeforge {
namespace event {

template <class W> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };

template <class C, class X> __device__ __forceinline__ C number_of(X x) { return static_cast<C>(convert<float>(x)); }
template <> __device__ __forceinline__ double number_of<double, double>(double x) { return x; }

// The inclusive prefix sum of x over the lanes of the warp.
template <class T> __device__ __forceinline__ T sum_up_to_lane(T x) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T other = __shfl_up_sync(~0u, x, d);
    if ((threadIdx.x & 31) >= d) x += other;
  }
  return x;
}

// Inclusive prefix sum over the threads of a block. `of_warps` is shared memory for 32 values, which may be reused
// after a later __syncthreads.
__device__ __forceinline__ int sum_up_to_thread(int x, int* of_warps) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x / 32;
  const int sum = sum_up_to_lane(x);
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  return sum + __shfl_sync(~0u, sum_up_to_lane(lane < warp ? of_warps[lane] : 0), 31);
}

// The type of an event. `boolean` is the byte of a bool.
struct boolean {
  unsigned char value;
};
template <class C, class X> struct Entry {
  static __device__ __forceinline__ C number(X x) { return number_of<C>(x); }
  static __device__ __forceinline__ bool active(X x) {
    if constexpr (sizeof(X) == 8)
      return x > 0;
    else
      return convert<float>(x) > 0;
  }
};
template <class C> struct Entry<C, boolean> {
  static __device__ __forceinline__ C number(boolean x) { return static_cast<C>(x.value != 0); }
  static __device__ __forceinline__ bool active(boolean x) { return x.value != 0; }
};

template <bool first, class A, class B> struct Choose { using type = A; };
template <class A, class B> struct Choose<false, A, B> { using type = B; };

// True if the matrix failed the check, which was launched earlier on the same stream.
__device__ __forceinline__ bool is_refused(const ProductArguments& a) {
  return a.refused != nullptr && *a.refused != 0;
}

// The compile-time choices of a kernel. indptr: bytes of an element, 0 if rows have one width. lanes: threads that
// share a row. columns: the number of them that process different vectors. in_shared_memory: bits, or private sums.
// delays: results are added to a ring.
template <class Weight_, class X_, Values values_, bool homogeneous_, int indptr_, Sums sums_, int lanes_, int columns_,
          int unroll_, bool in_shared_memory_, bool transpose_, Delays delays_>
struct Spec {
  using Weight = Weight_;
  using X = X_;
  using Compute = typename ComputeOf<Weight>::type;
  static constexpr Values values = values_;
  static constexpr bool homogeneous = homogeneous_, in_shared_memory = in_shared_memory_, transpose = transpose_;
  static constexpr int indptr = indptr_, lanes = lanes_, columns = columns_, unroll = unroll_;
  static constexpr Sums sums = sums_;
  static constexpr Delays delays = delays_;
  static constexpr bool counts = homogeneous && values == Values::event;
  using Sum = typename Choose<counts, unsigned, Compute>::type;

  static __device__ __forceinline__ Int begin(const ProductArguments& a, Int row) {
    if constexpr (indptr == 0)
      return row * a.width;
    else if constexpr (indptr == 4)
      return static_cast<const int*>(a.indptr)[row];
    else
      return static_cast<const Int*>(a.indptr)[row];
  }
  static __device__ __forceinline__ Compute weight(const ProductArguments& a, Int k) {
    return number_of<Compute>(static_cast<const Weight*>(a.weights)[homogeneous ? 0 : k]);
  }
  static __device__ __forceinline__ X entry(const ProductArguments& a, Int length, Int i, Int c) {
    return static_cast<const X*>(a.x)[(blockIdx.y * length + i) * a.n + c];
  }
  static __device__ __forceinline__ bool contributes(X x) {
    return values == Values::number || Entry<Compute, X>::active(x);
  }
  static __device__ __forceinline__ Compute contribution(X x) {
    return values == Values::event ? Compute(1) : Entry<Compute, X>::number(x);
  }
  static __device__ __forceinline__ Weight round(Compute x) {
    if constexpr (sizeof(Weight) == sizeof(Compute))
      return x;
    else
      return convert<Weight>(static_cast<float>(x));
  }
  // Without a contribution the result is 0, whatever the weight.
  template <class Sum> static __device__ __forceinline__ Compute weighted(const ProductArguments& a, Sum sum) {
    if constexpr (!homogeneous)
      return sum;
    else {
      if (values != Values::number && sum == 0) return 0;
      if constexpr (counts)
        return static_cast<Compute>(static_cast<double>(weight(a, 0)) * static_cast<double>(sum));
      else
        return weight(a, 0) * sum;
    }
  }
  template <class Sum> static __device__ __forceinline__ Weight result(const ProductArguments& a, Sum sum) {
    return round(weighted(a, sum));
  }
};

// The slots of spikes in flight, relative to the step of a call. Nothing is delivered in a step before the first.
template <class S> struct Ring {
  Int size;  // elements of a slot
  int now = 0, slots;
  int same = 0;  // the delay of all connections
  bool begun;

  __device__ __forceinline__ explicit Ring(const ProductArguments& a)
      : size(a.slot_size), slots(static_cast<int>(a.ring_slots)) {
    if constexpr (S::delays == Delays::none) return;
    const Int step = a.step != nullptr ? *a.step : a.now;
    begun = step >= 0;
    now = static_cast<int>(step % a.ring_slots);
    if constexpr (S::delays == Delays::one)
      same = a.delay_bytes == 1 ? *static_cast<const unsigned char*>(a.delays) : *static_cast<const int*>(a.delays);
  }
  static __device__ __forceinline__ int delay_of(const ProductArguments& a, Int k) {
    if constexpr (S::delays == Delays::bytes)
      return __ldcs(static_cast<const unsigned char*>(a.delays) + k);
    else
      return __ldcs(static_cast<const int*>(a.delays) + k);
  }
  __device__ __forceinline__ int delay(const ProductArguments& a, Int k) const {
    if constexpr (S::delays == Delays::bytes || S::delays == Delays::words)
      return delay_of(a, k);
    else
      return same;
  }
  // The offset of the slot in which a spike with this delay arrives.
  __device__ __forceinline__ Int offset(int delay) const {
    if constexpr (S::delays == Delays::none) return 0;
    const int slot = now + delay;
    return (slot < slots ? slot : slot - slots) * size;
  }
};

template <int lanes, class T> __device__ __forceinline__ T sum_over_lanes(T x, int step) {
  const unsigned group = lanes == 32 ? ~0u : ((1u << (lanes & 31)) - 1) << ((threadIdx.x & 31) & ~(lanes - 1));
#pragma unroll
  for (int d = lanes / 2; d >= 1; d /= 2)
    if (d >= step) x += __shfl_xor_sync(group, x, d);
  return x;
}

// Offsets within a part of a row have 32 bits, which is much faster; a row may be longer.
constexpr Int most_of_row = Int(1) << 30;

// Nonzeros whose loads are in flight together. The last wave of a row may have fewer.
struct Wave {
  bool full;
  int left, step;
  __device__ __forceinline__ bool has(int u) const { return full || u * step < left; }
};

// Calls f(columns, k, wave) for the nonzeros k, k + step, ... of a lane, `unroll` at a time. The column of a nonzero
// after the last is 0.
template <int unroll, class F>
__device__ __forceinline__ void for_nonzeros(const int* indices, Int begin, Int end, int lane, int step, F&& f) {
  for (; begin < end; begin += most_of_row) {
    const int* const part = indices + begin;
    const int count = static_cast<int>(min(end - begin, most_of_row));
    // No lane exits before the last wave: the remaining nonzeros would then wait for separate loads.
    int k = lane;
    for (int end_of_wave = unroll * step; end_of_wave <= count; end_of_wave += unroll * step, k += unroll * step) {
      int columns[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) columns[u] = __ldcs(part + k + u * step);
      f(columns, begin + k, Wave{true, 0, step});
    }
    if (k < count) {
      const Wave last{false, count - k, step};
      int columns[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) columns[u] = last.has(u) ? __ldcs(part + k + u * step) : 0;
      f(columns, begin + k, last);
    }
  }
}

}  // namespace event
}  // namespace spikeforge
