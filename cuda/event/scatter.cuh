// e A: sums by columns. Blocks search for rows that contribute, and split them into tasks for warps. A block that found
// few tasks executes them immediately. Blocks that found more list their tasks; when all are listed, warps execute them
// in a round-robin order, and add to sums in memory or, for many tasks, to private sums of the block in shared memory,
// which the block then adds to those in memory. Finally, sums are converted to results.
//
// If weights are homogeneous and entries are events, sums are counts: integers, which are the same in any order.
// Otherwise they are floats or, in deterministic calls, 64-bit integers, scaled by the largest weight and entry
// (`limits`) so that no sum overflows.
//
// With delays, floats are added directly to the ring; other sums have the size of the whole ring, and finish adds them
// to it.
#pragma once

#include "cuda/event/event.cuh"

namespace spikeforge {
namespace event {

// The largest finite magnitude of weights and of entries.
template <class S> __device__ __forceinline__ void limits(const ProductArguments& a) {
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  const Int first = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  double weight = 0, entry = S::values == Values::event ? 1 : 0;
  const auto raise = [](double& most, double x) {
    const double size = fabs(x);
    if (size > most && size <= 1.7976931348623157e308) most = size;
  };
  for (Int k = first; k < (S::homogeneous ? 1 : a.nnz); k += threads) raise(weight, S::weight(a, k));
  if constexpr (S::values != Values::event) {
    for (Int i = first; i < a.batches * (S::transpose ? a.rows : a.cols) * a.n; i += threads) {
      const auto x = static_cast<const typename S::X*>(a.x)[i];
      if (S::contributes(x)) raise(entry, S::contribution(x));
    }
  }
#pragma unroll
  for (int d = 16; d >= 1; d /= 2) {
    weight = fmax(weight, __shfl_xor_sync(~0u, weight, d));
    entry = fmax(entry, __shfl_xor_sync(~0u, entry, d));
  }
  if ((threadIdx.x & 31) == 0) {
    atomicMax(a.limits, static_cast<unsigned long long>(__double_as_longlong(weight)));
    atomicMax(a.limits + 1, static_cast<unsigned long long>(__double_as_longlong(entry)));
  }
}

constexpr int most_doublings = 2044;  // products that need more are below 2^-1983, which is 0

// For fixed sums: the number of doublings of a product of weight and entry such that the sum of all nonzeros stays
// below 2^62.
template <class S> __device__ __forceinline__ int doublings(const ProductArguments& a) {
  if constexpr (S::sums != Sums::fixed) return 0;
  const unsigned long long weight = S::homogeneous ? 0x3ff0000000000000ull : a.limits[0];  // 1
  const unsigned long long entry = a.limits[1];
  if (weight == 0 || entry == 0) return 0;
  const auto above = [](unsigned long long bits) { return static_cast<int>(bits >> 52) - 1022; };  // it is below 2^this
  const int most = 62 - (64 - __clzll(a.nnz)) - above(weight) - above(entry);
  return most < most_doublings ? most : most_doublings;
}

// 2^n for |n| <= 1022.
__device__ __forceinline__ double power_of_two(int n) {
  return __longlong_as_double(static_cast<long long>(n + 1023) << 52);
}
// x 2^n for |n| <= most_doublings, in two steps that neither overflow nor lose bits before the result does. (scalbn is
// a call, and spills.)
struct Doubled {
  double half, rest;
  __device__ __forceinline__ explicit Doubled(int n) : half(power_of_two(n / 2)), rest(power_of_two(n - n / 2)) {}
  __device__ __forceinline__ double operator()(double x) const { return x * half * rest; }
};

// atomicAdd to global memory without a result: nvcc otherwise requests the old value in kernels such as these, and a
// scatter takes a third longer. Sums are read after a grid barrier, or by another kernel.
#define SPIKEFORGE_ADD_TO(type, suffix, constraint)                                            \
  __device__ __forceinline__ void add_to(type* sum, type x) {                                  \
    asm volatile("red.relaxed.gpu.global.add." suffix " [%0], %1;" ::"l"(sum), constraint(x)); \
  }
SPIKEFORGE_ADD_TO(unsigned, "u32", "r")
SPIKEFORGE_ADD_TO(unsigned long long, "u64", "l")
SPIKEFORGE_ADD_TO(float, "f32", "f")
SPIKEFORGE_ADD_TO(double, "f64", "d")
#undef SPIKEFORGE_ADD_TO

// Adds to sums in memory, or to private sums of the block in shared memory.
template <class S, bool to_own> struct Adder {
  static constexpr bool fixed = S::sums == Sums::fixed;
  using Stored = typename Choose<S::sums == Sums::counts, unsigned, typename S::Compute>::type;

  const ProductArguments& a;
  Doubled scaled;  // for fixed sums
  Ring<S> ring;
  typename S::Compute shared = 1;  // the homogeneous weight, unless finish multiplies by it

  // `doublings` is used for fixed sums.
  __device__ __forceinline__ Adder(const ProductArguments& a, int doublings) : a(a), scaled(doublings), ring(a) {
    if constexpr (S::homogeneous && S::delays != Delays::none && S::sums == Sums::floats) shared = S::weight(a, 0);
  }

  static __device__ __forceinline__ Stored* own() {
    extern __shared__ unsigned long long memory[];  // aligned for any type of sum
    return reinterpret_cast<Stored*>(memory);
  }

  __device__ __forceinline__ typename S::Compute weight(Int k) const {
    if constexpr (S::homogeneous)
      return shared;
    else
      return S::weight(a, k);
  }

  // The contribution of an entry through a nonzero of this weight.
  __device__ __forceinline__ void add(Int at, typename S::Compute weight, typename S::X x) const {
    if constexpr (S::sums == Sums::counts) {
      add_plain(at, 1u);
    } else if constexpr (fixed) {
      const double value = static_cast<double>(weight) * static_cast<double>(S::contribution(x));
      if (fabs(value) <= 1.7976931348623157e308)
        add_to(static_cast<unsigned long long*>(a.sums) + at,
               static_cast<unsigned long long>(__double2ll_rn(scaled(value))));
      else
        add_to(a.infinities + at, static_cast<float>(value));
    } else {
      add_plain(at, S::contribution(x) * weight);
    }
  }

 private:
  __device__ __forceinline__ void add_plain(Int at, Stored x) const {
    if constexpr (to_own)
      atomicAdd(own() + at, x);
    else
      add_to(static_cast<Stored*>(a.sums) + at, x);
  }
};

// Called by a whole warp.
template <class S, bool to_own>
__device__ __forceinline__ void add_task(const Adder<S, to_own>& adder, const Task& task) {
  const ProductArguments& a = adder.a;
  const int lane = threadIdx.x & 31;
  const Int base = S::in_shared_memory ? 0 : task.row / a.rows * a.cols * a.n;  // private sums belong to one batch
  constexpr int unroll = S::sums == Sums::fixed ? 1 : S::unroll;                // integer sums spill with more
  constexpr int step = 32 / S::columns;
  for (Int c = lane % S::columns; c < a.n; c += S::columns) {
    const auto x = static_cast<const typename S::X*>(a.x)[task.row * a.n + c];
    if (!S::contributes(x)) continue;
    for_nonzeros<unroll>(a.indices, task.first, task.first + task.count, lane / S::columns, step,
                         [&](const int(&columns)[unroll], Int k, const Wave& wave) {
                           typename S::Compute weights[unroll];  // loads are not moved across additions
                           int delays[unroll];
#pragma unroll
                           for (int u = 0; u < unroll; ++u) {
                             weights[u] = wave.has(u) ? adder.weight(k + u * step) : 1;
                             delays[u] = wave.has(u) ? adder.ring.delay(a, k + u * step) : 0;
                           }
#pragma unroll
                           for (int u = 0; u < unroll; ++u) {
                             if (!wave.has(u)) break;
                             adder.add(base + adder.ring.offset(delays[u]) + columns[u] * a.n + c, weights[u], x);
                           }
                         });
  }
  __syncwarp();
}

constexpr int arrival_bits = 16;  // enough for the blocks of any device, twice

// The grid barrier number `time` of this launch: writes of blocks before it are visible to all after it. The launch
// must be cooperative. Returns the number of listed tasks.
__device__ __forceinline__ Int wait_for_grid(GridBarrier* barrier, unsigned time) {
  __shared__ Int listed;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(&barrier->state, 1ull);
    unsigned long long state;
    do state = *static_cast<volatile unsigned long long*>(&barrier->state);
    while ((state & ((1u << arrival_bits) - 1)) < time * gridDim.x);
    listed = static_cast<Int>(state >> arrival_bits);
    __threadfence();
  }
  __syncthreads();
  return listed;
}

// Tasks of the rows that contribute: a block that has no more of them than warps adds them, another lists them.
template <class S> __device__ __forceinline__ void find_tasks(const Adder<S, false>& adder) {
  __shared__ Task own_tasks[32];
  __shared__ int found;
  __shared__ int until[1024];  // tasks of a block's rows up to each
  __shared__ int of_warps[32];
  __shared__ Int begins[1024];
  __shared__ Int listed;
  const ProductArguments& a = adder.a;
  const int warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const Int rows = a.batches * a.rows;
  const int chunk_bits = 63 - __clzll(a.chunk);
  const auto in_batch = [&](Int row) { return S::in_shared_memory ? row : row % a.rows; };  // own sums are of one batch
  for (Int first = blockIdx.x * a.rows_at_once; first < rows; first += gridDim.x * a.rows_at_once) {
    if (threadIdx.x == 0) found = 0;
    const Int row = first + threadIdx.x;
    Int begin = 0, nnz = 0;
    if (threadIdx.x < a.rows_at_once && row < rows) {
      begin = S::begin(a, in_batch(row));  // in flight with the entries, needed or not
      const Int end = S::begin(a, in_batch(row) + 1);
      bool contributes = S::values == Values::number;
      for (Int c = 0; c < a.n && !contributes; ++c)
        contributes = S::contributes(static_cast<const typename S::X*>(a.x)[row * a.n + c]);
      if (contributes) nnz = end - begin;
    }
    const int tasks = static_cast<int>((nnz + a.chunk - 1) >> chunk_bits);
    __syncthreads();
    if (tasks > 0) {
      int at = atomicAdd(&found, tasks);
      for (Int done = 0; done < nnz && at < warps; done += a.chunk, ++at)
        own_tasks[at] = {begin + done, row, static_cast<int>(min(a.chunk, nnz - done))};
    }
    __syncthreads();
    if (found <= warps) {
      if (warp < found) add_task(adder, own_tasks[warp]);
    } else {
      begins[threadIdx.x] = begin;
      until[threadIdx.x] = sum_up_to_thread(tasks, of_warps);
      if constexpr (S::in_shared_memory) {
        const Int of_warp = sum_over_lanes<32>(nnz, 1);
        if (threadIdx.x % 32 == 0 && of_warp > 0) atomicAdd(&a.grid_barrier->nnz, of_warp);
      }
      if (threadIdx.x == 0)
        listed = static_cast<Int>(
            atomicAdd(&a.grid_barrier->state, static_cast<unsigned long long>(found) << arrival_bits) >> arrival_bits);
      __syncthreads();
      for (int i = threadIdx.x; i < found; i += blockDim.x) {
        int thread = 0;  // of the row: as many of `until` are at most i
        for (int step = blockDim.x / 2; step > 0; step /= 2)
          if (until[thread + step - 1] <= i) thread += step;
        const Int task_begin = begins[thread] + (i - (thread == 0 ? 0 : until[thread - 1])) * a.chunk;
        const Int of = first + thread;
        const Int end = S::begin(a, in_batch(of) + 1);
        a.tasks[listed + i] = {task_begin, of, static_cast<int>(min(a.chunk, end - task_begin))};
      }
    }
    __syncthreads();  // the lists are used again
  }
}

// Listed ones. One after the other goes to another block: a multiprocessor adds to memory slowly.
template <class S, bool to_own> __device__ __forceinline__ void add_tasks(const Adder<S, to_own>& adder, Int count) {
  const ProductArguments& a = adder.a;
  const Int warps = static_cast<Int>(gridDim.x) * (blockDim.x / 32);
  const auto load = [&](Int i) -> Task {
    if (i >= count) return {};
    const Task* const task = a.tasks + i;
    return {__ldcg(&task->first), __ldcg(&task->row), __ldcg(&task->count)};
  };
  Int i = static_cast<Int>(threadIdx.x / 32) * gridDim.x + blockIdx.x;
  Task task = load(i);
  for (; i < count; i += warps) {
    const Task next = load(i + warps);  // in flight while this task is added
    add_task(adder, task);
    task = next;
  }
}

template <class S>
__device__ __forceinline__ typename S::Compute result_of_sum(const ProductArguments& a, Int at, int shift) {
  if constexpr (S::sums == Sums::counts)
    return S::weighted(a, __ldcg(static_cast<const unsigned*>(a.sums) + at));
  else if constexpr (S::sums == Sums::floats)
    return S::weighted(a, __ldcg(static_cast<const typename S::Compute*>(a.sums) + at));
  else
    return S::weighted(a, static_cast<typename S::Compute>(
                              Doubled(-shift)(static_cast<double>(__ldcg(static_cast<const long long*>(a.sums) + at))) +
                              static_cast<double>(__ldcg(a.infinities + at))));
}

// Converts sums to results, if they differ. With delays, adds the sums of the whole ring to the ring.
template <class S> __device__ __forceinline__ void finish(const ProductArguments& a) {
  const int shift = doublings<S>(a);
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  const Int count = S::delays == Delays::none ? a.batches * a.cols * a.n : a.ring_slots * a.slot_size;
  for (Int at = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += threads) {
    if constexpr (S::delays == Delays::none)
      static_cast<typename S::Weight*>(a.y)[at] = S::round(result_of_sum<S>(a, at, shift));
    else
      static_cast<typename S::Compute*>(a.y)[at] += result_of_sum<S>(a, at, shift);
  }
}

// Adds to private sums of the block, and these to the sums in memory.
template <class S> __device__ __forceinline__ void add_tasks_by_own(const ProductArguments& a, Int count) {
  using Own = Adder<S, true>;
  auto* const own = Own::own();
  for (Int i = threadIdx.x; i < a.cols * a.n; i += blockDim.x) own[i] = 0;
  __syncthreads();
  add_tasks(Own(a, 0), count);
  __syncthreads();
  for (Int i = threadIdx.x; i < a.cols * a.n; i += blockDim.x)
    if (own[i] != 0) add_to(static_cast<typename Own::Stored*>(a.sums) + i, own[i]);
}

template <class S> __device__ __forceinline__ void scatter(const ProductArguments& a) {
  const int shift = doublings<S>(a);
  const Adder<S, false> adder(a, shift);
  if (S::delays != Delays::none && !adder.ring.begun) return;
  find_tasks(adder);
  const Int listed = wait_for_grid(a.grid_barrier, 1);

  const bool in_place = S::delays != Delays::none || a.sums == a.y;
  if (listed > 0) {
    bool by_own = false;
    if constexpr (S::in_shared_memory) {
      by_own = static_cast<Int>(__ldcg(&a.grid_barrier->nnz)) >= a.private_from;
      if (by_own) add_tasks_by_own<S>(a, listed);
    }
    if (!by_own) add_tasks(adder, listed);
    if (!in_place) wait_for_grid(a.grid_barrier, 2);
  }
  if (!in_place) finish<S>(a);
}

}  // namespace event
}  // namespace spikeforge
