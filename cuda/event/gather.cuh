// A e: sums of rows. A group of lanes sums a row, and a block a long one. The events of a single vector are read as
// bits, from shared memory if they fit.
#pragma once

#include "cuda/event/event.cuh"

namespace spikeforge {
namespace event {

template <class S> __device__ __forceinline__ void pack(const ProductArguments& a) {
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int i = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.words * 32; i += threads) {
    const bool is = i < a.cols && S::contributes(S::entry(a, a.cols, i, 0));
    const unsigned word = __ballot_sync(~0u, is);
    if ((i & 31) == 0) a.bits[blockIdx.y * a.words + (i >> 5)] = word;
  }
}

template <class Weight> struct alignas(sizeof(Weight) == 2 ? 8 : 16) FourWeights { Weight of[4]; };

// The contribution of one of `lanes` lanes to the sum of a row whose events are bits: every lanes-th group of four
// nonzeros that are loaded at once, and the remaining nonzeros before and after them.
template <class S>
__device__ __forceinline__ typename S::Sum sum_of_bits(const ProductArguments& a, const unsigned* bits, Int begin,
                                                       Int end, int lane, int lanes) {
  using Sum = typename S::Sum;
  using Weight = typename S::Weight;
  using Four = FourWeights<Weight>;
  const auto fires = [&](int column) { return bits[static_cast<unsigned>(column) >> 5] >> (column & 31) & 1; };
  Sum sum = 0;
  for (; begin < end; begin += most_of_row) {
    const int* const part = a.indices + begin;
    const auto* const weights =
        static_cast<const Weight*>(a.weights) + (S::homogeneous ? 0 : begin);  // not read for counts
    const int count = static_cast<int>(min(end - begin, most_of_row));
    const int before = min(count, static_cast<int>(-(reinterpret_cast<size_t>(part) / sizeof(int)) & 3));
    const int fours = (count - before) / 4;
    const auto* const columns = reinterpret_cast<const int4*>(part + before);
    const auto* const of_fours = reinterpret_cast<const Four*>(weights + before);
    const bool aligned = !S::homogeneous && reinterpret_cast<size_t>(of_fours) % alignof(Four) == 0;

    const auto one = [&](int column, int k) -> Sum {
      if constexpr (S::counts)
        return fires(column);
      else
        return fires(column) ? number_of<Sum>(weights[k]) : Sum(0);
    };
    const auto four = [&](int4 column, int i) -> Sum {
      const int k = before + 4 * i;
      if constexpr (!S::homogeneous) {
        if (aligned) {
          const bool is[] = {fires(column.x) != 0, fires(column.y) != 0, fires(column.z) != 0, fires(column.w) != 0};
          if (!(is[0] | is[1] | is[2] | is[3])) return 0;
          const Four w = of_fours[i];
          return ((is[0] ? number_of<Sum>(w.of[0]) : Sum(0)) + (is[1] ? number_of<Sum>(w.of[1]) : Sum(0))) +
                 ((is[2] ? number_of<Sum>(w.of[2]) : Sum(0)) + (is[3] ? number_of<Sum>(w.of[3]) : Sum(0)));
        }
      }
      return one(column.x, k) + one(column.y, k + 1) + one(column.z, k + 2) + one(column.w, k + 3);
    };
    int i = lane;
    for (int end_of_wave = S::unroll * lanes; end_of_wave <= fours;
         end_of_wave += S::unroll * lanes, i += S::unroll * lanes) {
      int4 loaded[S::unroll];
#pragma unroll
      for (int u = 0; u < S::unroll; ++u) loaded[u] = __ldcs(columns + i + u * lanes);
#pragma unroll
      for (int u = 0; u < S::unroll; ++u) sum += four(loaded[u], i + u * lanes);
    }
    if (i < fours) {
      int4 loaded[S::unroll];
#pragma unroll
      for (int u = 0; u < S::unroll; ++u)
        if (i + u * lanes < fours) loaded[u] = __ldcs(columns + i + u * lanes);
#pragma unroll
      for (int u = 0; u < S::unroll; ++u)
        if (i + u * lanes < fours) sum += four(loaded[u], i + u * lanes);
    }
    for (int rest = lane; rest < count - 4 * fours; rest += lanes) {
      const int k = rest < before ? rest : 4 * fours + rest;
      sum += one(part[k], k);
    }
  }
  return sum;
}

// Adds to the gradients of the weights of a row: the products of the row's entry e and the entries of x, which
// `columns` lanes share. All gradients of a wave are loaded before any is stored, so that their loads overlap.
template <class S> struct WeightGradients {
  using Compute = typename S::Compute;
  Compute* sums;
  Compute e;       // of the vector of this lane
  bool is_active;  // false if e is 0 for all vectors
  bool stores;
  Compute loaded[S::unroll];

  __device__ __forceinline__ void load(Int k, int step, const Wave& wave) {
#pragma unroll
    for (int u = 0; u < S::unroll; ++u)
      if (is_active && stores && wave.has(u)) loaded[u] = sums[k + u * step];
  }
  __device__ __forceinline__ void add(Int k, int step, const Wave& wave, const typename S::X (&x)[S::unroll]) {
    if (!is_active) return;
#pragma unroll
    for (int u = 0; u < S::unroll; ++u) {
      const Compute part = e != Compute(0) ? e * S::contribution(x[u]) : Compute(0);
      const Compute gradient = sum_over_lanes<S::columns>(part, 1);
      if (stores && wave.has(u)) sums[k + u * step] = loaded[u] + gradient;
    }
  }
};
struct NoGradients {
  __device__ __forceinline__ void load(Int, int, const Wave&) {}
  template <class X> __device__ __forceinline__ void add(Int, int, const Wave&, const X&) {}
};

template <class S, class Gradients>
__device__ __forceinline__ typename S::Sum sum_of_entries(const ProductArguments& a, Int c, Int begin, Int end,
                                                          int lane, int step, Gradients gradients) {
  using Sum = typename S::Sum;
  const auto* const entries = static_cast<const typename S::X*>(a.x) + blockIdx.y * a.cols * a.n + c;
  Sum sum = 0;
  for_nonzeros<S::unroll>(a.indices, begin, end, lane, step,
                          [&](const int(&columns)[S::unroll], Int k, const Wave& wave) {
                            typename S::X x[S::unroll];
                            Sum weight[S::unroll];
#pragma unroll
                            for (int u = 0; u < S::unroll; ++u) x[u] = entries[columns[u] * a.n];
                            gradients.load(k, step, wave);
#pragma unroll
                            for (int u = 0; u < S::unroll; ++u)
                              weight[u] = !wave.has(u) || !S::contributes(x[u]) ? Sum(0)
                                          : S::homogeneous                      ? Sum(1)
                                                                                : S::weight(a, k + u * step);
#pragma unroll
                            for (int u = 0; u < S::unroll; ++u)
                              if (wave.has(u) && S::contributes(x[u]))
                                sum += static_cast<Sum>(S::contribution(x[u])) * weight[u];
                            gradients.add(k, step, wave, x);
                          });
  return sum;
}

// Sums all rows, for each tile of vectors. A group of lanes sums a row; warps process rows in a round-robin order over
// the blocks. A row of more than a.long_row nonzeros is summed by its block, or by its warp if the block has many such
// rows: the order of a sum does not depend on the order of execution.
template <class S, class F>
__device__ __forceinline__ void sum_rows(const ProductArguments& a, Int tiles, const F& sum_of) {
  using Sum = typename S::Sum;
  constexpr int most_waiting = 64;
  constexpr int most_warps = 16;
  constexpr int groups = 32 / S::lanes;  // in a warp
  __shared__ Int waiting[most_waiting];
  __shared__ int count;
  __shared__ Sum of_warps[most_warps * S::columns];
  if (threadIdx.x == 0) count = 0;
  __syncthreads();

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const Int items = a.rows * tiles;
  const Int first = (static_cast<Int>(warp) * gridDim.x + blockIdx.x) * groups;  // the first row of this warp
  const Int step = static_cast<Int>(gridDim.x) * (blockDim.x / 32) * groups;
  const auto row_of = [&](Int item) { return tiles == 1 ? item : item / tiles; };
  const auto length_of = [&](Int item) { return S::begin(a, row_of(item) + 1) - S::begin(a, row_of(item)); };
  const auto part_of_sum = [&](Int item, int thread, int threads) {
    const Int row = row_of(item);
    return sum_of(row, item - row * tiles, S::begin(a, row), S::begin(a, row + 1), thread, threads);
  };
  const auto store = [&](Int item, int column, Sum sum) {
    const Int row = row_of(item);
    const Int c = (item - row * tiles) * S::columns + column;
    if (column < S::columns && c < a.n)
      static_cast<typename S::Weight*>(a.y)[(blockIdx.y * a.rows + row) * a.n + c] = S::result(a, sum);
  };

  for (Int item = first + lane / S::lanes; item < items; item += step) {
    const int of_group = lane % S::lanes;
    if (length_of(item) <= a.long_row) {
      store(item, of_group, sum_over_lanes<S::lanes>(part_of_sum(item, of_group, S::lanes), S::columns));
    } else if (of_group == 0) {
      const int place = atomicAdd(&count, 1);
      if (place < most_waiting) waiting[place] = item;
    }
  }
  __syncthreads();

  const bool by_block = count <= most_waiting;
  for (Int i = 0; by_block ? i < count : first + i / groups * step < items; ++i) {
    const Int item = by_block ? waiting[i] : first + i / groups * step + i % groups;
    if (!by_block && (item >= items || length_of(item) <= a.long_row)) continue;
    const Sum sum =
        sum_over_lanes<32>(part_of_sum(item, by_block ? threadIdx.x : lane, by_block ? blockDim.x : 32), S::columns);
    if (!by_block) {
      store(item, lane, sum);
      continue;
    }
    if (lane < S::columns) of_warps[warp * S::columns + lane] = sum;
    __syncthreads();
    if (threadIdx.x < S::columns) {
      Sum total = 0;
      for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) total += of_warps[w * S::columns + threadIdx.x];
      store(item, threadIdx.x, total);
    }
    __syncthreads();
  }
}

// One vector, its events as bits.
template <class S> __device__ __forceinline__ void gather_bits(const ProductArguments& a) {
  const unsigned* bits = a.bits + blockIdx.y * a.words;
  if constexpr (S::in_shared_memory) {
    extern __shared__ unsigned held[];
    for (Int w = threadIdx.x; w < a.words; w += blockDim.x) held[w] = bits[w];
    __syncthreads();
    bits = held;
  }
  sum_rows<S>(a, 1, [&](Int, Int, Int begin, Int end, int lane, int lanes) {
    return sum_of_bits<S>(a, bits, begin, end, lane, lanes);
  });
}

// For any number of vectors, and any entries: `columns` lanes of a group process different vectors.
template <class S> __device__ __forceinline__ void gather(const ProductArguments& a) {
  sum_rows<S>(a, (a.n + S::columns - 1) / S::columns, [&](Int, Int tile, Int begin, Int end, int lane, int lanes) {
    const Int c = tile * S::columns + lane % S::columns;
    return c < a.n ? sum_of_entries<S>(a, c, begin, end, lane / S::columns, lanes / S::columns, NoGradients())
                   : typename S::Sum(0);
  });
}

// Also adds to a.sums [nnz] the gradient of the weights in e A, where x is the gradient of its result and a.grad
// [rows, n] contains e, in the type of sums: both read the same rows of x. For n <= 32, one tile.
template <class S> __device__ __forceinline__ void gather_with_gradient(const ProductArguments& a) {
  using Compute = typename S::Compute;
  auto* const sums = static_cast<Compute*>(a.sums);
  sum_rows<S>(a, 1, [&](Int row, Int, Int begin, Int end, int lane, int lanes) {
    const int c = lane % S::columns;
    const Compute e = c < a.n ? static_cast<const Compute*>(a.grad)[row * a.n + c] : Compute(0);
    const bool is_active = sum_over_lanes<S::columns>(static_cast<int>(e != Compute(0)), 1) != 0;
    // Lanes after the last vector read its entries, and their sums are not stored.
    return sum_of_entries<S>(a, min(static_cast<Int>(c), a.n - 1), begin, end, lane / S::columns, lanes / S::columns,
                             WeightGradients<S>{sums, e, is_active, c == 0, {}});
  });
}

}  // namespace event
}  // namespace spikeforge
