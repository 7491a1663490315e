// Products of a sparse matrix with events or numbers.
//
//   gather     A e   a group of threads a row; events of one vector are read as bits, from shared memory where they fit
//   compact    e A   first the rows that contribute, cut into tasks of at most `chunk` connections; it also clears the
//   sums scatter    e A   then a warp a task, adding to sums in memory, or, where there is much to add, to sums of the
//   block's
//                    own in shared memory, which it adds to those in memory at the end
//   finish     e A   sums to results, where the two differ
//   limits           the largest weight and entry, which scale the whole numbers of the deterministic way
//   plasticity       a spike's change of the weights of its row
//   weight_gradient  what a connection read times what arrives where it went
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

// 8-byte words; runtime/event_spec.h has the same in the same order.
struct ProductArgs {
  const int* indices;
  const void* indptr;
  Int width, rows, cols, connections;
  const void* weights;
  const void* x;  // [batches, length, n], contiguous; the batch is blockIdx.y
  void* y;
  void* sums;                  // [batches, out, n]
  float* infinities;           // of the fixed sums, which have none: [batches, out, n]
  unsigned long long* limits;  // bits of the largest finite |weight| and |entry|, as doubles
  unsigned* bits;              // [batches, words]
  int2* tasks;                 // row and number of the piece, [batches, task_capacity]
  longlong2* segments;         // tasks and connections of one block of compact, [batches, segment count]
  const void* grad;            // of weight_gradient
  const Int* slots;            // of plasticity: where the weight of a connection is, or null
  Int n, words, task_capacity, chunk, private_from, batches;
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

// The sum of connections first, first + step, ... of one vector whose events are bits.
template <class S>
__device__ __forceinline__ typename S::Sum sum_of_bits(const ProductArgs& a, const unsigned* bits, Int k, Int end,
                                                       int step) {
  using Sum = typename S::Sum;
  const auto one = [&](int column, Int at) -> Sum {
    const bool is = bits[static_cast<unsigned>(column) >> 5] >> (column & 31) & 1;
    if constexpr (S::counts)
      return is;
    else
      return is ? S::weight(a, at) : Sum(0);
  };
  Sum sum = 0;
  for (; k + (S::unroll - 1) * step < end; k += S::unroll * step) {
    int columns[S::unroll];
#pragma unroll
    for (int u = 0; u < S::unroll; ++u) columns[u] = __ldcs(a.indices + k + u * step);
#pragma unroll
    for (int u = 0; u < S::unroll; ++u) sum += one(columns[u], k + u * step);
  }
  for (; k < end; k += step) sum += one(__ldcs(a.indices + k), k);
  return sum;
}

template <class S>
__device__ __forceinline__ typename S::Sum sum_of_entries(const ProductArgs& a, Int c, Int k, Int end, int step) {
  using Sum = typename S::Sum;
  const auto one = [&](int column, Int at) -> Sum {
    const auto x = S::entry(a, a.cols, column, c);
    if (!S::contributes(x)) return 0;
    if constexpr (S::shared)
      return static_cast<Sum>(S::contribution(x));
    else
      return S::contribution(x) * S::weight(a, at);
  };
  Sum sum = 0;
  for (; k + (S::unroll - 1) * step < end; k += S::unroll * step) {
    int columns[S::unroll];
#pragma unroll
    for (int u = 0; u < S::unroll; ++u) columns[u] = a.indices[k + u * step];
#pragma unroll
    for (int u = 0; u < S::unroll; ++u) sum += one(columns[u], k + u * step);
  }
  for (; k < end; k += step) sum += one(a.indices[k], k);
  return sum;
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
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  for (Int row = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; row < a.rows; row += groups) {
    const auto sum =
        sum_over_lanes<S::lanes>(sum_of_bits<S>(a, bits, S::begin(a, row) + lane, S::begin(a, row + 1), S::lanes), 1);
    if (lane == 0) static_cast<typename S::Weight*>(a.y)[blockIdx.y * a.rows + row] = S::result(a, sum);
  }
}

// Any number of vectors, and any entries: `columns` lanes of a group stand side by side.
template <class S>
__device__ __forceinline__ void gather(const ProductArgs& a) {
  const Int tiles = (a.n + S::columns - 1) / S::columns;
  const Int groups = static_cast<Int>(gridDim.x) * blockDim.x / S::lanes;
  const int lane = threadIdx.x % S::lanes;
  const int column = lane % S::columns;
  for (Int item = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / S::lanes; item < a.rows * tiles;
       item += groups) {
    const Int row = item / tiles;
    const Int c = item % tiles * S::columns + column;
    typename S::Sum sum = 0;
    if (c < a.n)
      sum = sum_of_entries<S>(a, c, S::begin(a, row) + lane / S::columns, S::begin(a, row + 1), S::lanes / S::columns);
    sum = sum_over_lanes<S::lanes>(sum, S::columns);
    if (lane < S::columns && c < a.n)
      static_cast<typename S::Weight*>(a.y)[(blockIdx.y * a.rows + row) * a.n + c] = S::result(a, sum);
  }
}

// Few rows, long ones: a block a row.
template <class S>
__device__ __forceinline__ void gather_by_blocks(const ProductArgs& a) {
  __shared__ typename S::Sum of_warps[32];
  for (Int item = blockIdx.x; item < a.rows * a.n; item += gridDim.x) {
    const Int row = item / a.n;
    auto sum = sum_over_lanes<32>(
        sum_of_entries<S>(a, item % a.n, S::begin(a, row) + threadIdx.x, S::begin(a, row + 1), blockDim.x), 1);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
      sum = threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : typename S::Sum(0);
      sum = sum_over_lanes<32>(sum, 1);
      if (threadIdx.x == 0) static_cast<typename S::Weight*>(a.y)[blockIdx.y * a.rows * a.n + item] = S::result(a, sum);
    }
    __syncthreads();
  }
}

// ---- by columns ----

constexpr int rows_of_segment = 1024;  // rows that one block of compact looks at

// The tasks of rows before `first` are at most so many: the tasks of a segment begin there.
template <class S>
__device__ __forceinline__ Int first_task(const ProductArgs& a, Int first) {
  return first + S::begin(a, first) / a.chunk;
}

template <class S>
__device__ __forceinline__ void compact(const ProductArgs& a) {
  __shared__ int tasks_before[33];
  __shared__ Int connections_of[32];
  const Int count = a.cols * a.n;
  for (Int i = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<Int>(gridDim.x) * blockDim.x) {
    const Int at = blockIdx.y * count + i;
    if constexpr (S::sums == Sums::counts) static_cast<unsigned*>(a.sums)[at] = 0;
    if constexpr (S::sums == Sums::floats) static_cast<typename S::Compute*>(a.sums)[at] = 0;
    if constexpr (S::sums == Sums::fixed) {
      static_cast<unsigned long long*>(a.sums)[at] = 0;
      a.infinities[at] = 0;
    }
  }
  const Int first = static_cast<Int>(blockIdx.x) * rows_of_segment;
  if (first >= a.rows) return;  // a block that only clears
  const Int row = first + threadIdx.x;
  int pieces = 0;
  Int connections = 0;
  if (row < a.rows) {
    bool contributes = S::values == Values::number;
    for (Int c = 0; c < a.n && !contributes; ++c) contributes = S::contributes(S::entry(a, a.rows, row, c));
    if (contributes) {
      connections = S::begin(a, row + 1) - S::begin(a, row);
      pieces = static_cast<int>((connections + a.chunk - 1) / a.chunk);
    }
  }
  const int lane = threadIdx.x & 31;
  int before = pieces;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, before, d);
    if (lane >= d) before += other;
  }
  connections = sum_over_lanes<32>(connections, 1);
  if (lane == 31) tasks_before[threadIdx.x >> 5] = before;
  if (lane == 0) connections_of[threadIdx.x >> 5] = connections;
  __syncthreads();
  if (threadIdx.x < 32) {
    const int own = tasks_before[lane];
    int sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    tasks_before[lane] = sum - own;
    const Int total = sum_over_lanes<32>(connections_of[lane], 1);
    if (lane == 31) {
      const Int segments = (a.rows + rows_of_segment - 1) / rows_of_segment;
      a.segments[blockIdx.y * segments + blockIdx.x] = {sum, total};
    }
  }
  __syncthreads();
  Int at = blockIdx.y * a.task_capacity + first_task<S>(a, first) + tasks_before[threadIdx.x >> 5] + before - pieces;
  for (int piece = 0; piece < pieces; ++piece) a.tasks[at++] = {static_cast<int>(row), piece};
}

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

// So many doublings of a product of weight and entry that the sum of all connections stays below 2^62.
template <bool shared>
__device__ __forceinline__ int doublings(const ProductArgs& a) {
  const unsigned long long weight = shared ? 0x3ff0000000000000ull : a.limits[0];  // 1
  const unsigned long long entry = a.limits[1];
  if (weight == 0 || entry == 0) return 0;
  const auto above = [](unsigned long long bits) { return static_cast<int>(bits >> 52) - 1022; };  // it is below 2^this
  return 62 - (64 - __clzll(a.connections)) - above(weight) - above(entry);
}

// 2^n for |n| <= 1022.
__device__ __forceinline__ double power_of_two(int n) {
  return __longlong_as_double(static_cast<long long>(n + 1023) << 52);
}
// x 2^n, in two steps that neither overflow nor lose bits before the result does. (scalbn is a call, and spills.)
struct Doubled {
  double half, rest;
  __device__ __forceinline__ explicit Doubled(int n) : half(power_of_two(n / 2)), rest(power_of_two(n - n / 2)) {}
  __device__ __forceinline__ double operator()(double x) const { return x * half * rest; }
};

template <class S>
struct Adder {
  static constexpr bool fixed = S::sums == Sums::fixed;
  using Stored = typename Choose<S::sums == Sums::counts, unsigned, typename S::Compute>::type;

  const ProductArgs& a;
  Stored* own;     // the block's in shared memory, or null
  Doubled scaled;  // of fixed sums

  __device__ __forceinline__ void add(Int at, Int k, typename S::X x) const {
    if constexpr (S::sums == Sums::counts) {
      add_plain(at, 1u);
    } else if constexpr (fixed) {
      const double value =
          (S::shared ? 1.0 : static_cast<double>(S::weight(a, k))) * static_cast<double>(S::contribution(x));
      if (fabs(value) <= 1.7976931348623157e308)
        atomicAdd(static_cast<unsigned long long*>(a.sums) + at,
                  static_cast<unsigned long long>(__double2ll_rn(scaled(value))));
      else
        atomicAdd(a.infinities + at, static_cast<float>(value));
    } else {
      const auto entry = S::contribution(x);
      if constexpr (S::shared)
        add_plain(at, entry);
      else if constexpr (S::values == Values::event)
        add_plain(at, S::weight(a, k));
      else
        add_plain(at, entry * S::weight(a, k));
    }
  }

 private:
  __device__ __forceinline__ void add_plain(Int at, Stored x) const {
    if (S::in_shared && own)
      atomicAdd(own + at, x);
    else
      atomicAdd(static_cast<Stored*>(a.sums) + blockIdx.y * a.cols * a.n + at, x);
  }
};

template <class S>
__device__ __forceinline__ void scatter(const ProductArgs& a) {
  extern __shared__ unsigned char memory[];
  using Own = typename Adder<S>::Stored;
  const int lane = threadIdx.x & 31;
  const Int segments = (a.rows + rows_of_segment - 1) / rows_of_segment;
  const longlong2* const of_batch = a.segments + blockIdx.y * segments;
  const Int count = a.cols * a.n;

  Own* own = nullptr;
  if constexpr (S::in_shared) {
    Int total = 0;
    for (Int s = lane; s < segments; s += 32) total += of_batch[s].y;
    if (sum_over_lanes<32>(total, 1) >= a.private_from) own = reinterpret_cast<Own*>(memory);
    if (own) {
      for (Int i = threadIdx.x; i < count; i += blockDim.x) own[i] = 0;
      __syncthreads();
    }
  }
  int shift = 0;
  if constexpr (Adder<S>::fixed) shift = doublings<S::shared>(a);
  const Adder<S> adder{a, own, Doubled(shift)};

  const Int warps = static_cast<Int>(gridDim.x) * blockDim.x / 32;
  const Int warp = (static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const Int base = Adder<S>::fixed ? blockIdx.y * count : 0;
  Int seen = 0;  // tasks of the segments before
  Int next = warp;
  for (Int s0 = 0; s0 < segments; s0 += 32) {
    const Int mine = s0 + lane < segments ? of_batch[s0 + lane].x : 0;
    Int until = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const Int other = __shfl_up_sync(~0u, until, d);
      if (lane >= d) until += other;
    }
    const Int here = __shfl_sync(~0u, until, 31);
    for (; next < seen + here; next += warps) {
      const int segment = __popc(__ballot_sync(~0u, until <= next - seen));
      const Int before = __shfl_sync(~0u, until - mine, segment);
      const Int at = first_task<S>(a, (s0 + segment) * rows_of_segment) + (next - seen - before);
      const int2 task = a.tasks[blockIdx.y * a.task_capacity + at];
      const Int first = S::begin(a, task.x) + task.y * a.chunk;
      const Int last = min(first + a.chunk, S::begin(a, static_cast<Int>(task.x) + 1));
      for (Int c = lane % S::columns; c < a.n; c += S::columns) {
        const auto x = S::entry(a, a.rows, task.x, c);
        if (!S::contributes(x)) continue;
        constexpr int step = 32 / S::columns;
        constexpr int unroll = Adder<S>::fixed ? 1 : S::unroll;  // whole sums spill with more
        Int k = first + lane / S::columns;
        for (; k + (unroll - 1) * step < last; k += unroll * step) {
          int columns[unroll];
#pragma unroll
          for (int u = 0; u < unroll; ++u) columns[u] = __ldcs(a.indices + k + u * step);
#pragma unroll
          for (int u = 0; u < unroll; ++u) adder.add(base + columns[u] * a.n + c, k + u * step, x);
        }
        for (; k < last; k += step) adder.add(base + __ldcs(a.indices + k) * a.n + c, k, x);
      }
      __syncwarp();
    }
    seen += here;
  }
  if constexpr (S::in_shared)
    if (own) {
      __syncthreads();
      Own* const all = static_cast<Own*>(a.sums) + blockIdx.y * count;
      for (Int i = threadIdx.x; i < count; i += blockDim.x)
        if (own[i] != 0) atomicAdd(all + i, own[i]);
    }
}

template <class S>
__device__ __forceinline__ void finish(const ProductArgs& a) {
  const Int count = a.cols * a.n;
  int shift = 0;
  if constexpr (S::sums == Sums::fixed) shift = doublings<S::shared>(a);
  for (Int i = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<Int>(gridDim.x) * blockDim.x) {
    const Int at = blockIdx.y * count + i;
    auto& y = static_cast<typename S::Weight*>(a.y)[at];
    if constexpr (S::sums == Sums::counts)
      y = S::result(a, static_cast<const unsigned*>(a.sums)[at]);
    else if constexpr (S::sums == Sums::floats)
      y = S::result(a, static_cast<const typename S::Compute*>(a.sums)[at]);
    else
      y = S::result(a, static_cast<typename S::Compute>(
                           Doubled(-shift)(static_cast<double>(static_cast<const long long*>(a.sums)[at])) +
                           static_cast<double>(a.infinities[at])));
  }
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
