// Products of a sparse matrix with events or numbers.
//
//   gather           A e   a group of lanes a row, or a block where it is long; events of one vector are read as bits,
//                          from shared memory where they fit
//   scatter          e A   blocks look for rows that contribute and cut them into tasks for a warp. A block that found
//                          few adds them to the sums; tasks of blocks that found more are listed, and when all are,
//                          warps take them in turn and add to sums in memory or, where there is much to add, to sums of
//                          the block's own in shared memory, which it then adds to those in memory. At last sums become
//                          results.
//   limits                 the largest weight and entry, which scale the whole numbers of the deterministic way
//   plasticity             a spike's change of the weights of its row
//   weight_gradient        what a connection read times what arrives where it went
//
// Sums by columns are counts where one weight is shared and entries are events: whole numbers, the same in any order.
// Else they are floats; or in the deterministic way 64-bit whole numbers, scaled so that no sum of them overflows.
#pragma once

#include <spikeforge/cuda/half.cuh>

namespace spikeforge {
namespace event {

using Int = long long;

enum class Values { event, graded, number };
enum class Sums { counts, floats, fixed };

// What blocks of one scatter tell each other. All 0 before it begins, and so are the sums.
struct Meeting {
  unsigned long long state;        // tasks listed, and in the lowest bits blocks that arrived
  unsigned long long connections;  // listed
};
// Connections first, first + 1, ... of a row, which is counted over all batches.
struct Task {
  Int first, row;
  int count;
};

// 8-byte words; runtime/event_spec.h has the same in the same order.
struct ProductArgs {
  const int* indices;
  const void* indptr;
  Int width, rows, cols, connections;
  const void* weights;
  const void* x;  // [batches, length, n], contiguous; by rows the batch is blockIdx.y
  void* y;
  void* sums;                  // [batches, out, n]; y itself where it is large and sums need no change to be results
  float* infinities;           // of the fixed sums, which have none: [batches, out, n]
  unsigned long long* limits;  // bits of the largest finite |weight| and |entry|, as doubles
  unsigned* bits;              // [batches, words]
  Meeting* meeting;
  Task* tasks;
  const void* grad;  // of weight_gradient
  const Int* slots;  // of plasticity: where the weight of a connection is, or null
  Int n, words, batches;
  Int long_row;        // by rows: a row of more connections is not for a group of lanes
  Int chunk;           // connections of a task, at most: a power of two
  Int rows_at_once;    // that a block looks at, no more than it has threads
  Int private_from;    // connections from which a block's sums are its own
  double least, most;  // of plasticity
};

template <class W>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};

template <class C, class X>
__device__ __forceinline__ C number_of(X x) {
  return static_cast<C>(convert<float>(x));
}
template <>
__device__ __forceinline__ double number_of<double, double>(double x) {
  return x;
}

// Of one entry. `boolean` is a bool's byte.
struct boolean {
  unsigned char value;
};
template <class C, class X>
struct Entry {
  static __device__ __forceinline__ C number(X x) { return number_of<C>(x); }
  static __device__ __forceinline__ bool active(X x) {
    if constexpr (sizeof(X) == 8)
      return x > 0;
    else
      return convert<float>(x) > 0;
  }
};
template <class C>
struct Entry<C, boolean> {
  static __device__ __forceinline__ C number(boolean x) { return static_cast<C>(x.value != 0); }
  static __device__ __forceinline__ bool active(boolean x) { return x.value != 0; }
};

template <bool first, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

// What is known when a kernel is compiled. Indptr: bytes of an element, 0 where rows have one width. Lanes: threads
// that share a row. Columns: of them, those that take vectors side by side. InShared: bits, or private sums.
template <class Weight_, class X_, Values values_, bool shared_, int indptr_, Sums sums_, int lanes_, int columns_,
          int unroll_, bool in_shared_, bool transpose_>
struct Spec {
  using Weight = Weight_;
  using X = X_;
  using Compute = typename ComputeOf<Weight>::type;
  static constexpr Values values = values_;
  static constexpr bool shared = shared_, in_shared = in_shared_, transpose = transpose_;
  static constexpr int indptr = indptr_, lanes = lanes_, columns = columns_, unroll = unroll_;
  static constexpr Sums sums = sums_;
  static constexpr bool counts = shared && values == Values::event;
  using Sum = typename Choose<counts, unsigned, Compute>::type;

  static __device__ __forceinline__ Int begin(const ProductArgs& a, Int row) {
    if constexpr (indptr == 0)
      return row * a.width;
    else if constexpr (indptr == 4)
      return static_cast<const int*>(a.indptr)[row];
    else
      return static_cast<const Int*>(a.indptr)[row];
  }
  static __device__ __forceinline__ Compute weight(const ProductArgs& a, Int k) {
    return number_of<Compute>(static_cast<const Weight*>(a.weights)[shared ? 0 : k]);
  }
  static __device__ __forceinline__ X entry(const ProductArgs& a, Int length, Int i, Int c) {
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
  // Where nothing contributed the result is 0, whatever the weight.
  template <class Sum>
  static __device__ __forceinline__ Weight result(const ProductArgs& a, Sum sum) {
    if constexpr (!shared)
      return round(sum);
    else {
      if (values != Values::number && sum == 0) return round(0);
      if constexpr (counts)
        return round(static_cast<Compute>(static_cast<double>(weight(a, 0)) * static_cast<double>(sum)));
      else
        return round(weight(a, 0) * sum);
    }
  }
};

// ---- bits ----

template <class S>
__device__ __forceinline__ void pack(const ProductArgs& a) {
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int i = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.words * 32; i += threads) {
    const bool is = i < a.cols && S::contributes(S::entry(a, a.cols, i, 0));
    const unsigned word = __ballot_sync(~0u, is);
    if ((i & 31) == 0) a.bits[blockIdx.y * a.words + (i >> 5)] = word;
  }
}

// ---- by rows ----

template <int lanes, class T>
__device__ __forceinline__ T sum_over_lanes(T x, int step) {
  const unsigned group = lanes == 32 ? ~0u : ((1u << (lanes & 31)) - 1) << ((threadIdx.x & 31) & ~(lanes - 1));
#pragma unroll
  for (int d = lanes / 2; d >= 1; d /= 2)
    if (d >= step) x += __shfl_xor_sync(group, x, d);
  return x;
}

// Offsets within a part of a row have 32 bits, which is much faster; a row may be longer.
constexpr Int most_of_row = Int(1) << 30;

// Connections whose loads wait together. The last wave of a row may lack some.
struct Wave {
  bool full;
  int left, step;
  __device__ __forceinline__ bool has(int u) const { return full || u * step < left; }
};

// f(columns, k, wave) for connections k, k + step, ... of a lane, so many at a time; the column of one that is not
// there is 0.
template <int unroll, class F>
__device__ __forceinline__ void for_connections(const int* indices, Int begin, Int end, int lane, int step, F&& f) {
  for (; begin < end; begin += most_of_row) {
    const int* const part = indices + begin;
    const int count = static_cast<int>(min(end - begin, most_of_row));
    // No lane leaves before the last wave: its rest would wait for loads of its own.
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

template <class Weight>
struct alignas(sizeof(Weight) == 2 ? 8 : 16) FourWeights {
  Weight of[4];
};

// The part of one of `lanes` in the sum of a row, whose events are bits: every lanes-th four of connections that are
// loaded at once, and of the few before and behind them.
template <class S>
__device__ __forceinline__ typename S::Sum sum_of_bits(const ProductArgs& a, const unsigned* bits, Int begin, Int end,
                                                       int lane, int lanes) {
  using Sum = typename S::Sum;
  using Weight = typename S::Weight;
  using Four = FourWeights<Weight>;
  const auto fires = [&](int column) { return bits[static_cast<unsigned>(column) >> 5] >> (column & 31) & 1; };
  Sum sum = 0;
  for (; begin < end; begin += most_of_row) {
    const int* const part = a.indices + begin;
    const auto* const weights =
        static_cast<const Weight*>(a.weights) + (S::shared ? 0 : begin);  // of counts none is read
    const int count = static_cast<int>(min(end - begin, most_of_row));
    const int before = min(count, static_cast<int>(-(reinterpret_cast<size_t>(part) / sizeof(int)) & 3));
    const int fours = (count - before) / 4;
    const auto* const columns = reinterpret_cast<const int4*>(part + before);
    const auto* const of_fours = reinterpret_cast<const Four*>(weights + before);
    const bool aligned = !S::shared && reinterpret_cast<size_t>(of_fours) % alignof(Four) == 0;

    const auto one = [&](int column, int k) -> Sum {
      if constexpr (S::counts)
        return fires(column);
      else
        return fires(column) ? number_of<Sum>(weights[k]) : Sum(0);
    };
    const auto four = [&](int4 column, int i) -> Sum {
      const int k = before + 4 * i;
      if constexpr (!S::shared) {
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

template <class S>
__device__ __forceinline__ typename S::Sum sum_of_entries(const ProductArgs& a, Int c, Int begin, Int end, int lane,
                                                          int step) {
  using Sum = typename S::Sum;
  const auto* const entries = static_cast<const typename S::X*>(a.x) + blockIdx.y * a.cols * a.n + c;
  Sum sum = 0;
  for_connections<S::unroll>(
      a.indices, begin, end, lane, step, [&](const int(&columns)[S::unroll], Int k, const Wave& wave) {
        typename S::X x[S::unroll];
        Sum weight[S::unroll];
#pragma unroll
        for (int u = 0; u < S::unroll; ++u) x[u] = entries[columns[u] * a.n];
#pragma unroll
        for (int u = 0; u < S::unroll; ++u)
          weight[u] = !wave.has(u) || !S::contributes(x[u]) ? Sum(0) : S::shared ? Sum(1) : S::weight(a, k + u * step);
#pragma unroll
        for (int u = 0; u < S::unroll; ++u)
          if (wave.has(u) && S::contributes(x[u])) sum += static_cast<Sum>(S::contribution(x[u])) * weight[u];
      });
  return sum;
}

// Sums of all rows, for each of so many tiles of vectors. A group of lanes sums a row; warps take rows in turn, one
// after the other from another block. A row of more connections than a.long_row is summed by its block, or by its warp
// if the block has many of them: the order of a sum does not depend on who comes first.
template <class S, class F>
__device__ __forceinline__ void sum_rows(const ProductArgs& a, Int tiles, const F& sum_of) {
  using Sum = typename S::Sum;
  constexpr int most_waiting = 64;
  constexpr int most_warps = 16;
  constexpr int groups = 32 / S::lanes;  // of a warp
  __shared__ Int waiting[most_waiting];
  __shared__ int count;
  __shared__ Sum of_warps[most_warps * S::columns];
  if (threadIdx.x == 0) count = 0;
  __syncthreads();

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const Int items = a.rows * tiles;
  const Int first = (static_cast<Int>(warp) * gridDim.x + blockIdx.x) * groups;  // of this warp
  const Int step = static_cast<Int>(gridDim.x) * (blockDim.x / 32) * groups;
  const auto row_of = [&](Int item) { return tiles == 1 ? item : item / tiles; };
  const auto length_of = [&](Int item) { return S::begin(a, row_of(item) + 1) - S::begin(a, row_of(item)); };
  const auto part_of_sum = [&](Int item, int thread, int threads) {
    const Int row = row_of(item);
    return sum_of(item - row * tiles, S::begin(a, row), S::begin(a, row + 1), thread, threads);
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
template <class S>
__device__ __forceinline__ void gather_bits(const ProductArgs& a) {
  const unsigned* bits = a.bits + blockIdx.y * a.words;
  if constexpr (S::in_shared) {
    extern __shared__ unsigned held[];
    for (Int w = threadIdx.x; w < a.words; w += blockDim.x) held[w] = bits[w];
    __syncthreads();
    bits = held;
  }
  sum_rows<S>(a, 1, [&](Int, Int begin, Int end, int lane, int lanes) {
    return sum_of_bits<S>(a, bits, begin, end, lane, lanes);
  });
}

// Any number of vectors, and any entries: `columns` lanes of a group stand side by side.
template <class S>
__device__ __forceinline__ void gather(const ProductArgs& a) {
  sum_rows<S>(a, (a.n + S::columns - 1) / S::columns, [&](Int tile, Int begin, Int end, int lane, int lanes) {
    const Int c = tile * S::columns + lane % S::columns;
    return c < a.n ? sum_of_entries<S>(a, c, begin, end, lane / S::columns, lanes / S::columns) : typename S::Sum(0);
  });
}

// ---- by columns ----

// The largest finite magnitude of weights and of entries.
template <class S>
__device__ __forceinline__ void limits(const ProductArgs& a) {
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  const Int first = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  double weight = 0, entry = S::values == Values::event ? 1 : 0;
  const auto raise = [](double& most, double x) {
    const double size = fabs(x);
    if (size > most && size <= 1.7976931348623157e308) most = size;
  };
  for (Int k = first; k < (S::shared ? 1 : a.connections); k += threads) raise(weight, S::weight(a, k));
  if constexpr (S::values != Values::event) {
    for (Int i = first; i < a.batches * a.rows * a.n; i += threads) {
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

constexpr int most_doublings = 2044;  // products that more are asked for are below 2^-1983, which is 0

// So many doublings of a product of weight and entry that the sum of all connections stays below 2^62.
template <bool shared>
__device__ __forceinline__ int doublings(const ProductArgs& a) {
  const unsigned long long weight = shared ? 0x3ff0000000000000ull : a.limits[0];  // 1
  const unsigned long long entry = a.limits[1];
  if (weight == 0 || entry == 0) return 0;
  const auto above = [](unsigned long long bits) { return static_cast<int>(bits >> 52) - 1022; };  // it is below 2^this
  const int most = 62 - (64 - __clzll(a.connections)) - above(weight) - above(entry);
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

// atomicAdd to global memory, of which nobody wants the old value: in kernels such as these the compiler asks for it
// all the same, and a scatter takes a third longer. Sums are read when blocks have met, or by another kernel.
#define SPIKEFORGE_ADD_TO(type, suffix, constraint)                                            \
  __device__ __forceinline__ void add_to(type* sum, type x) {                                  \
    asm volatile("red.relaxed.gpu.global.add." suffix " [%0], %1;" ::"l"(sum), constraint(x)); \
  }
SPIKEFORGE_ADD_TO(unsigned, "u32", "r")
SPIKEFORGE_ADD_TO(unsigned long long, "u64", "l")
SPIKEFORGE_ADD_TO(float, "f32", "f")
SPIKEFORGE_ADD_TO(double, "f64", "d")
#undef SPIKEFORGE_ADD_TO

// To sums in memory, or to a block's own in shared memory.
template <class S, bool to_own>
struct Adder {
  static constexpr bool fixed = S::sums == Sums::fixed;
  using Stored = typename Choose<S::sums == Sums::counts, unsigned, typename S::Compute>::type;

  const ProductArgs& a;
  Doubled scaled;  // of fixed sums

  static __device__ __forceinline__ Stored* own() {
    extern __shared__ unsigned long long memory[];  // aligned for any sum
    return reinterpret_cast<Stored*>(memory);
  }

  // What an entry contributes through a connection of this weight; a shared one is for finish.
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

// By a whole warp.
template <class S, bool to_own>
__device__ __forceinline__ void add_task(const Adder<S, to_own>& adder, const Task& task) {
  const ProductArgs& a = adder.a;
  const int lane = threadIdx.x & 31;
  const Int base = S::in_shared ? 0 : task.row / a.rows * a.cols * a.n;  // own sums are of one batch
  constexpr int unroll = S::sums == Sums::fixed ? 1 : S::unroll;         // whole sums spill with more
  constexpr int step = 32 / S::columns;
  for (Int c = lane % S::columns; c < a.n; c += S::columns) {
    const auto x = static_cast<const typename S::X*>(a.x)[task.row * a.n + c];
    if (!S::contributes(x)) continue;
    for_connections<unroll>(a.indices, task.first, task.first + task.count, lane / S::columns, step,
                            [&](const int(&columns)[unroll], Int k, const Wave& wave) {
                              typename S::Compute weights[unroll];  // loads do not pass additions
#pragma unroll
                              for (int u = 0; u < unroll; ++u)
                                weights[u] = S::shared || !wave.has(u) ? 1 : S::weight(a, k + u * step);
#pragma unroll
                              for (int u = 0; u < unroll; ++u) {
                                if (!wave.has(u)) break;
                                adder.add(base + columns[u] * a.n + c, weights[u], x);
                              }
                            });
  }
  __syncwarp();
}

// The sum of x over this lane and those before it.
template <class T>
__device__ __forceinline__ T sum_up_to_lane(T x) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T other = __shfl_up_sync(~0u, x, d);
    if ((threadIdx.x & 31) >= d) x += other;
  }
  return x;
}

// Over this thread and those before it. `of_warps` is shared memory for 32, which may be used again once a later
// __syncthreads has passed.
__device__ __forceinline__ int sum_up_to_thread(int x, int* of_warps) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x / 32;
  const int sum = sum_up_to_lane(x);
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  return sum + __shfl_sync(~0u, sum_up_to_lane(lane < warp ? of_warps[lane] : 0), 31);
}

constexpr int arrival_bits = 16;  // enough for the blocks of any device, twice

// All blocks meet for the `time`th time; what they wrote before is seen by all. They have to be on the device together.
// Returns how many tasks are listed.
__device__ __forceinline__ Int meet(Meeting* meeting, unsigned time) {
  __shared__ Int listed;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(&meeting->state, 1ull);
    unsigned long long state;
    do state = *static_cast<volatile unsigned long long*>(&meeting->state);
    while ((state & ((1u << arrival_bits) - 1)) < time * gridDim.x);
    listed = static_cast<Int>(state >> arrival_bits);
    __threadfence();
  }
  __syncthreads();
  return listed;
}

// Tasks of the rows that contribute: a block that has no more of them than warps adds them, another lists them.
template <class S>
__device__ __forceinline__ void find_tasks(const Adder<S, false>& adder) {
  __shared__ Task own_tasks[32];
  __shared__ int found;
  __shared__ int until[1024];  // tasks of a block's rows up to each
  __shared__ int of_warps[32];
  __shared__ Int begins[1024];
  __shared__ Int listed;
  const ProductArgs& a = adder.a;
  const int warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const Int rows = a.batches * a.rows;
  const int chunk_bits = 63 - __clzll(a.chunk);
  for (Int first = blockIdx.x * a.rows_at_once; first < rows; first += gridDim.x * a.rows_at_once) {
    if (threadIdx.x == 0) found = 0;
    const Int row = first + threadIdx.x;
    Int begin = 0, connections = 0;
    if (threadIdx.x < a.rows_at_once && row < rows) {
      const Int of_batch = S::in_shared ? row : row % a.rows;  // own sums are of one batch
      begin = S::begin(a, of_batch);                           // on its way with the entries, needed or not
      const Int end = S::begin(a, of_batch + 1);
      bool contributes = S::values == Values::number;
      for (Int c = 0; c < a.n && !contributes; ++c)
        contributes = S::contributes(static_cast<const typename S::X*>(a.x)[row * a.n + c]);
      if (contributes) connections = end - begin;
    }
    const int tasks = static_cast<int>((connections + a.chunk - 1) >> chunk_bits);
    __syncthreads();
    if (tasks > 0) {
      int at = atomicAdd(&found, tasks);
      for (Int done = 0; done < connections && at < warps; done += a.chunk, ++at)
        own_tasks[at] = {begin + done, row, static_cast<int>(min(a.chunk, connections - done))};
    }
    __syncthreads();
    if (found <= warps) {
      if (warp < found) add_task(adder, own_tasks[warp]);
    } else {
      begins[threadIdx.x] = begin;
      until[threadIdx.x] = sum_up_to_thread(tasks, of_warps);
      if constexpr (S::in_shared) {
        const Int of_warp = sum_over_lanes<32>(connections, 1);
        if (threadIdx.x % 32 == 0 && of_warp > 0) atomicAdd(&a.meeting->connections, of_warp);
      }
      if (threadIdx.x == 0)
        listed = static_cast<Int>(
            atomicAdd(&a.meeting->state, static_cast<unsigned long long>(found) << arrival_bits) >> arrival_bits);
      __syncthreads();
      for (int i = threadIdx.x; i < found; i += blockDim.x) {
        int thread = 0;  // of the row: as many of `until` are at most i
        for (int step = blockDim.x / 2; step > 0; step /= 2)
          if (until[thread + step - 1] <= i) thread += step;
        const Int task_begin = begins[thread] + (i - (thread == 0 ? 0 : until[thread - 1])) * a.chunk;
        const Int of = first + thread;
        const Int end = S::begin(a, (S::in_shared ? of : of % a.rows) + 1);
        a.tasks[listed + i] = {task_begin, of, static_cast<int>(min(a.chunk, end - task_begin))};
      }
    }
    __syncthreads();  // the lists are used again
  }
}

// Listed ones. One after the other goes to another block: a multiprocessor adds to memory slowly.
template <class S, bool to_own>
__device__ __forceinline__ void add_tasks(const Adder<S, to_own>& adder, Int count) {
  const ProductArgs& a = adder.a;
  const Int warps = static_cast<Int>(gridDim.x) * (blockDim.x / 32);
  const auto load = [&](Int i) -> Task {
    if (i >= count) return {};
    const Task* const task = a.tasks + i;
    return {__ldcg(&task->first), __ldcg(&task->row), __ldcg(&task->count)};
  };
  Int i = static_cast<Int>(threadIdx.x / 32) * gridDim.x + blockIdx.x;
  Task task = load(i);
  for (; i < count; i += warps) {
    const Task next = load(i + warps);  // on its way while this one is added
    add_task(adder, task);
    task = next;
  }
}

template <class S>
__device__ __forceinline__ typename S::Weight result_of_sum(const ProductArgs& a, Int at, int shift) {
  if constexpr (S::sums == Sums::counts)
    return S::result(a, __ldcg(static_cast<const unsigned*>(a.sums) + at));
  else if constexpr (S::sums == Sums::floats)
    return S::result(a, __ldcg(static_cast<const typename S::Compute*>(a.sums) + at));
  else
    return S::result(a, static_cast<typename S::Compute>(
                            Doubled(-shift)(static_cast<double>(__ldcg(static_cast<const long long*>(a.sums) + at))) +
                            static_cast<double>(__ldcg(a.infinities + at))));
}

// Sums to results, where the two differ.
template <class S>
__device__ __forceinline__ void finish(const ProductArgs& a) {
  int shift = 0;
  if constexpr (S::sums == Sums::fixed) shift = doublings<S::shared>(a);
  const Int threads = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int at = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; at < a.batches * a.cols * a.n; at += threads)
    static_cast<typename S::Weight*>(a.y)[at] = result_of_sum<S>(a, at, shift);
}

// To sums of the block's own, which go to those in memory.
template <class S>
__device__ __forceinline__ void add_tasks_by_own(const ProductArgs& a, Int count) {
  using Own = Adder<S, true>;
  auto* const own = Own::own();
  for (Int i = threadIdx.x; i < a.cols * a.n; i += blockDim.x) own[i] = 0;
  __syncthreads();
  add_tasks(Own{a, Doubled(0)}, count);
  __syncthreads();
  for (Int i = threadIdx.x; i < a.cols * a.n; i += blockDim.x)
    if (own[i] != 0) add_to(static_cast<typename Own::Stored*>(a.sums) + i, own[i]);
}

template <class S>
__device__ __forceinline__ void scatter(const ProductArgs& a) {
  int shift = 0;
  if constexpr (S::sums == Sums::fixed) shift = doublings<S::shared>(a);
  const Adder<S, false> adder{a, Doubled(shift)};
  find_tasks(adder);
  const Int listed = meet(a.meeting, 1);

  const bool in_place = a.sums == a.y;
  if (listed > 0) {
    bool by_own = false;
    if constexpr (S::in_shared) {
      by_own = static_cast<Int>(__ldcg(&a.meeting->connections)) >= a.private_from;
      if (by_own) add_tasks_by_own<S>(a, listed);
    }
    if (!by_own) add_tasks(adder, listed);
    if (!in_place) meet(a.meeting, 2);
  }
  if (!in_place) finish<S>(a);
}

// ---- the weights' gradient ----

// A group of lanes a row; each of them takes connections. y is [connections], grad [batches, out, n].
template <class S>
__device__ __forceinline__ void weight_gradient(const ProductArgs& a) {
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  const Int in = S::transpose ? a.rows : a.cols;
  const Int out = S::transpose ? a.cols : a.rows;
  const auto* const x = static_cast<const typename S::X*>(a.x);
  const auto* const grad = static_cast<const typename S::Weight*>(a.grad);
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups)
    for (Int k = S::begin(a, row) + lane; k < S::begin(a, row + 1); k += S::lanes) {
      const Int column = a.indices[k];
      const Int from = S::transpose ? row : column;
      const Int to = S::transpose ? column : row;
      typename S::Compute sum = 0;
      for (Int b = 0; b < a.batches; ++b)
        for (Int c = 0; c < a.n; ++c) {
          const auto entry = x[(b * in + from) * a.n + c];
          if (S::contributes(entry))
            sum += S::contribution(entry) * number_of<typename S::Compute>(grad[(b * out + to) * a.n + c]);
        }
      static_cast<typename S::Weight*>(a.y)[k] = S::round(sum);
    }
}

// ---- plasticity ----

// x are events [rows], weights is the trace [cols] in the compute type, y the weights that change.
template <class S>
__device__ __forceinline__ void plasticity(const ProductArgs& a) {
  using Compute = typename S::Compute;
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  auto* const weights = static_cast<typename S::Weight*>(a.y);
  const auto* const trace = static_cast<const Compute*>(a.weights);
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups) {
    if (!S::contributes(S::entry(a, a.rows, row, 0))) continue;
    const Int end = S::begin(a, row + 1);
    for (Int k = S::begin(a, row) + lane; k < end; k += S::lanes) {
      auto& weight = weights[a.slots ? a.slots[k] : k];
      Compute changed = number_of<Compute>(weight) + trace[a.indices[k]];
      // Not fmin and fmax: a NaN stays one.
      if (changed < static_cast<Compute>(a.least)) changed = static_cast<Compute>(a.least);
      if (changed > static_cast<Compute>(a.most)) changed = static_cast<Compute>(a.most);
      weight = S::round(changed);
    }
  }
}

}  // namespace event
}  // namespace spikeforge
