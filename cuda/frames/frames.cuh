// Frames of the events of cameras: atomic additions of integers, so that the sums do not depend on the order.
//
// frames_in_shared computes frames in shared memory, from the events between searches.
// frames_in_global adds events to frames in global memory: those that are too large or too few, and those of samples
// whose times are not sorted or whose cells overflow in shared memory. It also completes surfaces, because a pixel's
// last event may be in an earlier frame.
#pragma once

#include "csrc/kernels/frames/arguments.h"
#include "cuda/cluster.cuh"
#include "cuda/rows.cuh"

namespace spikeforge {
namespace frames {

template <class T> __device__ __forceinline__ Int read(const void* column, Int i) {
  return static_cast<Int>(static_cast<const T*>(column)[i]);
}

struct Missing {};  // the type of a column that is null

// A coordinate outside of int becomes the least int, which is on no sensor.
template <class T> __device__ __forceinline__ int coordinate(T value) {
  if constexpr (sizeof(T) < sizeof(int)) return value;
  return static_cast<Int>(value) == static_cast<int>(value) ? static_cast<int>(value) : -2147483647 - 1;
}
__device__ __forceinline__ int coordinate(Missing) { return 0; }

// Returns the sample of an event: offsets[sample] <= event < offsets[sample + 1]. Wrong offsets give any sample.
__device__ __forceinline__ int sample_of(const FramesArguments& a, Int event) {
  int low = 0, high = a.samples - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (event < a.offsets[middle + 1])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The events of a sample, within the columns even if the offsets are wrong.
struct Range {
  Int begin, end;
};
__device__ __forceinline__ Range events_of(const FramesArguments& a, int sample) {
  const Int begin = ::min(::max(a.offsets[sample], 0ll), a.events);
  return {begin, ::min(::max(a.offsets[sample + 1], begin), a.events)};
}

// If steps are counted, `start` is the number of the first event.
template <class T>
__device__ __forceinline__ Steps steps_of_sample(const FramesArguments& a, bool is_voxel, int sample) {
  const Int begin = events_of(a, sample).begin, end = events_of(a, sample).end;
  if (begin == end) return {0, 1, 1, false};
  Steps steps = steps_of(a, is_voxel, sample, end - begin, read<T>(a.t, begin), read<T>(a.t, end - 1));
  if (a.by_count != 0) steps.start = begin;
  return steps;
}

__device__ __forceinline__ void report(const FramesArguments& a, Int event) {
  atomicMin(reinterpret_cast<unsigned long long*>(a.wrong), static_cast<unsigned long long>(event));
}

template <class Number> __device__ __forceinline__ void add(Number* cell, Number value) { atomicAdd(cell, value); }
__device__ __forceinline__ void add(Int* cell, Int value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(cell), static_cast<unsigned long long>(value));
}

template <Values values, class Number>
__device__ __forceinline__ void add_event(const FramesArguments& a, const Steps& steps, int sample, Int step,
                                          Int remainder, int cell, Int sign) {
  const auto frame = [&](Int of_step) { return (of_step * a.samples + sample) * a.cells; };
  const auto index = [&](Int of_step) { return frame(of_step) + cell; };
  if constexpr (values == Values::count) add(static_cast<Number*>(a.out) + index(step), Number(1));
  if constexpr (values == Values::binary) static_cast<Number*>(a.out)[index(step)] = Number(1);
  if constexpr (values == Values::bits)
    atomicOr(static_cast<unsigned*>(a.out) + frame(step) + cell / 32, 1u << (cell % 32));
  if constexpr (values == Values::voxel) {
    add(static_cast<Int*>(a.out) + index(step), sign * (steps.length - remainder));
    if (step + 1 < a.steps && remainder != 0) add(static_cast<Int*>(a.out) + index(step + 1), sign * remainder);
  }
  if constexpr (values == Values::surface) atomicMax(static_cast<Int*>(a.out) + index(step), remainder + 1);
}

// An event. `position` is its time, or its number in the batch if steps are counted.
struct Event {
  Int position;
  int x, y, p;
};

// The columns of an event as they are stored, so that no load waits for the conversion of another.
template <class T, class X, class Y, class P> struct Columns {
  T t;
  X x;
  Y y;
  P p;

  __device__ __forceinline__ void load(const FramesArguments& a, Int event) {
    if (a.by_count == 0) load(t, a.t, event);
    load(x, a.x, event);
    load(y, a.y, event);
    load(p, a.p, event);
  }
  __device__ __forceinline__ Event converted(const FramesArguments& a, Int event) const {
    return {a.by_count != 0 ? event : static_cast<Int>(t), coordinate(x), coordinate(y), coordinate(p)};
  }

 private:
  template <class Number> static __device__ __forceinline__ void load(Number& to, const void* column, Int event) {
    to = static_cast<const Number*>(column)[event];
  }
  static __device__ __forceinline__ void load(Missing&, const void*, Int) {}
};

template <class T, class X, class Y, class P>
__device__ __forceinline__ Event load(const FramesArguments& a, Int event) {
  Columns<T, X, Y, P> columns{};
  columns.load(a, event);
  return columns.converted(a, event);
}

// The scaled time of an event, or -1 if it is skipped, and its cell.
struct Placed {
  Int scaled = -1;
  int cell = no_cell;
};

// Reports wrong events.
__device__ __forceinline__ Placed place(const FramesArguments& a, const Steps& steps, int out_width, int sample,
                                        Int number, const Event& event) {
  Placed placed;
  placed.cell = cell_of(a, out_width, sample, event.x, event.y, event.p);
  Int scaled = 0;
  const bool has_step = scale(steps, event.position, scaled);
  if (placed.cell == wrong_cell || (!has_step && steps.begins_with_first)) report(a, number);
  if (a.keep != nullptr && a.keep[number] == 0) placed.cell = no_cell;
  if (has_step) placed.scaled = scaled;
  return placed;
}

constexpr int ahead = 4;  // events that a thread loads at once

__device__ __forceinline__ void check_offsets(const FramesArguments& a) {
  for (int i = threadIdx.x; i <= a.samples; i += blockDim.x)
    if (a.offsets[i] != (i == 0 ? 0 : ::max(a.offsets[i], a.offsets[i - 1])) ||
        (i == a.samples && a.offsets[i] != a.events))
      report(a, a.events);
}

// Searches for the first events that are not before the steps from `from` on, if the times of the sample are sorted.
// Otherwise, the results are arbitrary, but the same in every block. The first and the last step also have the events
// that are skipped. Each warp searches for one event at a time.
template <class T>
__device__ __forceinline__ void find_steps(const FramesArguments& a, const Steps& steps, Range sample, Int from,
                                           int count, Int* first) {
  const int lane = threadIdx.x % 32;
  for (int k = threadIdx.x / 32; k < count; k += blockDim.x / 32) {
    const Int before = (from + k) * steps.length;
    Int found = from + k < a.steps ? sample.begin : sample.end;
    // The result is less than `stride` events after `found`.
    Int stride = from + k > 0 && from + k < a.steps ? sample.end - sample.begin + 1 : 1;
    while (stride > 1) {
      stride = (stride - 1) / 32 + 1;
      const Int probe = found + (lane + 1) * stride - 1;
      const Int time = a.by_count != 0 ? probe : probe < sample.end ? read<T>(a.t, probe) : 0;
      Int scaled = 0;
      const bool is_before =
          probe < sample.end && (time < steps.start || (scale(steps, time, scaled) && scaled < before));
      found += __popc(__ballot_sync(~0u, is_before)) * stride;
    }
    if (lane == 0) first[k] = found;
  }
}

// The cells of a frame in shared memory: counters of 16 bits (the low halves of all words, then the high halves),
// single bits, sums of voxels in 32 bits, or times since the begin of the step in 32 bits.
template <Values values> struct SharedCells {
  unsigned* words;
  int half;  // the number of low halves

  __device__ __forceinline__ void clear(Int bytes) const {
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) reinterpret_cast<uint4*>(words)[i] = {0, 0, 0, 0};
  }

  // `since` is the time of the event since the begin of its step. `is_next`: adds a voxel to the following step.
  // Returns false if the cell overflows.
  __device__ __forceinline__ bool add(int cell, unsigned since, unsigned length, bool is_next, Int sign) const {
    if constexpr (values == Values::binary || values == Values::bits) atomicOr(words + cell / 32, 1u << (cell % 32));
    if constexpr (values == Values::surface) atomicMax(words + cell, since + 1);
    if constexpr (values == Values::count) {
      const bool is_high = cell >= half;
      const unsigned old = atomicAdd(words + (is_high ? cell - half : cell), is_high ? 0x10000u : 1u);
      return is_high ? old < 0xffff0000u : (old & 0xffffu) != 0xffffu;
    }
    if constexpr (values == Values::voxel) {
      const int size = is_next ? since : length - since, weight = sign < 0 ? -size : size;
      const int old = atomicAdd(reinterpret_cast<int*>(words) + cell, weight);
      const int sum = static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(weight));
      return ((old ^ sum) & (weight ^ sum)) >= 0;
    }
    return true;
  }

  // Adds the numbers of the four cells from cell i on, a multiple of 4, to totals; of bits, those of words.
  template <class Total> __device__ __forceinline__ void add_to(Total (&totals)[4], int i) const {
    const bool is_high = values == Values::count && i >= half;
    if constexpr (values == Values::binary) {
      for (int k = 0; k < 4; ++k) totals[k] |= words[i / 32] >> (i % 32 + k) & 1u;
      return;
    }
    const uint4 four = *reinterpret_cast<const uint4*>(words + (is_high ? i - half : i));
    const unsigned of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (values == Values::count) totals[k] += of[k] >> (is_high ? 16 : 0) & 0xffffu;
      if constexpr (values == Values::bits) totals[k] |= of[k];
      if constexpr (values == Values::voxel) totals[k] += static_cast<int>(of[k]);
      if constexpr (values == Values::surface) totals[k] = ::max(totals[k], of[k]);
    }
  }
};

template <bool first, class A, class B> struct EitherOf { using Type = A; };
template <class A, class B> struct EitherOf<false, A, B> { using Type = B; };
template <bool first, class A, class B> using Either = typename EitherOf<first, A, B>::Type;

// The type that frames_in_shared stores: of bits, words; of surfaces, times of the size of the numbers.
template <Values values, class Number> struct Stored { using Type = Number; };
template <class Number> struct Stored<Values::bits, Number> { using Type = unsigned; };
template <> struct Stored<Values::surface, float> { using Type = unsigned; };
template <> struct Stored<Values::surface, double> { using Type = Int; };

// Divides as operator/ of double does, by two steps of Newton's method from the inverse (Markstein, IBM J. Res. Dev.
// 34, 1990). The bounds of the divisor prevent overflow. They do not change surfaces: ages are in [1, 2^63], so
// beyond the bounds the exponential is 0 or 1.
struct Divisor {
  double value, inverse;
  __device__ __forceinline__ explicit Divisor(double by)
      : value(::fmin(::fmax(by, 1e-200), 1e200)), inverse(1.0 / value) {}
};
__device__ __forceinline__ double operator/(double n, const Divisor& by) {
  double quotient = n * by.inverse;
#pragma unroll
  for (int i = 0; i < 2; ++i) quotient = ::fma(::fma(-quotient, by.value, n), by.inverse, quotient);
  return quotient;
}

// A cluster of blocks computes `steps_of_block` consecutive frames of a sample, each block from a part of the events.
template <Values values, class T, class X, class Y, class P, class Number, int threads>
__device__ __forceinline__ void frames_in_shared(const FramesArguments& a) {
  constexpr bool is_voxel = values == Values::voxel;
  constexpr int before = is_voxel ? 1 : 0;  // voxels also have the events of the step before
  using Result = typename Stored<values, Number>::Type;
  extern __shared__ __align__(16) unsigned shared[];
  const int blocks = blocks_in_cluster(), rank = blocks > 1 ? rank_in_cluster() : 0;
  const int cluster = static_cast<int>(blockIdx.x) / blocks, sample = cluster % a.samples;
  const int from = cluster / a.samples * a.steps_of_block, to = ::min(from + a.steps_of_block, a.steps);
  const int cells = static_cast<int>(a.cells), width = row_width(a, values);
  if (blockIdx.x == 0) check_offsets(a);
  const SharedCells<values> shared_cells{shared, static_cast<int>(half_of(cells))};
  const Int bytes = shared_bytes_of(values, cells);
  Int* const first = reinterpret_cast<Int*>(shared + bytes / 4);
  int2* const kept = reinterpret_cast<int2*>(first + a.steps_of_block + 2);  // cells and weights for the following step
  const Steps steps = steps_of_sample<T>(a, is_voxel, sample);
  const bool is_possible = !has_second_pass(values) || steps.length >> 31 == 0;
  bool is_right = is_possible;
  if (is_possible) find_steps<T>(a, steps, events_of(a, sample), from - before, to - from + before + 1, first);
  const bool is_whole = has_whole_frames(a);
  const auto frame = [&](Int step) { return static_cast<Result*>(a.numbers) + (step * a.samples + sample) * a.cells; };
  const auto synchronise = [&] {
    if (blocks > 1)
      cluster_barrier();
    else
      __syncthreads();
  };
#pragma unroll 1
  for (int step = from; step < to; ++step) {
    shared_cells.clear(bytes);
    synchronise();
#pragma unroll 1
    for (int of_step = ::max(step - before, is_possible ? 0 : a.steps); of_step <= step; ++of_step) {
      const bool is_next = of_step < step;
      const Int* const bounds = first + (of_step - from + before);
      const Int begin = bounds[0], events_of_step = bounds[1] - begin;
      const int count = events_of_step >> 30 == 0 ? static_cast<int>(events_of_step) : 0;
      is_right &= events_of_step >> 30 == 0;
      const int known = is_next && step > from ? ::min(count, a.kept_events) : 0, room = is_next ? 0 : a.kept_events;
      if (is_voxel)
        for (int slot = threadIdx.x; slot < known; slot += threads)
          if (kept[slot].x >= 0) is_right &= shared_cells.add(kept[slot].x, kept[slot].y, 0, true, 1);
      const Int step_begin = of_step * steps.length;
      for (int slot = known + rank * ahead * threads + threadIdx.x; slot < count; slot += blocks * ahead * threads) {
        const auto add = [&](int i, int cell, unsigned since, Int sign) {
          is_right &= shared_cells.add(cell, since, steps.length, is_next, sign);
          if (is_voxel && slot + i * threads < room)
            kept[slot + i * threads] = {cell, sign < 0 ? -static_cast<int>(since) : static_cast<int>(since)};
        };
        Columns<T, X, Y, P> events[ahead]{};
#pragma unroll
        for (int i = 0; i < ahead; ++i)
          if (slot + i * threads < count) events[i].load(a, begin + slot + i * threads);
        unsigned others = 0;  // events that need the slow path: of other steps, wrong ones, and all in partial frames
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          const Event event = events[i].converted(a, begin + slot + i * threads);
          const int cell = is_whole ? whole_cell_of(a, width, event.x, event.y, event.p) : no_cell;
          Int since = difference(event.position, steps.start);
          const bool is_safe = !is_voxel || static_cast<unsigned long long>(since) >> 32 == 0;
          if (is_voxel) since *= steps.factor;
          since = difference(since, step_begin);
          if (slot + i * threads >= count) continue;
          if (cell >= 0 && is_safe && is_below(since, steps.length))
            add(i, cell, since, sign_of(a, event.p));
          else
            others |= 1u << i;
        }
        for (; others != 0; others &= others - 1) {
          const int i = __ffs(others) - 1;
          const Int number = begin + slot + i * threads;
          const Event event = load<T, X, Y, P>(a, number);
          const Placed at = place(a, steps, width, sample, number, event);
          if (is_voxel && slot + i * threads < room) kept[slot + i * threads].x = no_cell;
          const Int since = difference(at.scaled, step_begin);
          if (!is_below(since, steps.length))
            is_right &= at.scaled < 0 || at.scaled >= a.steps * steps.length;
          else if (at.cell >= 0)
            add(i, at.cell, since, sign_of(a, event.p));
        }
      }
    }
    synchronise();
    const Divisor divisor(divisor_of(a, values, steps));
    for (int i = 4 * (rank * threads + threadIdx.x); i < cells; i += 4 * blocks * threads) {
      Either<is_voxel, Int, unsigned> totals[4] = {};
#pragma unroll 1
      for (int other = 0; other < blocks; ++other)
        SharedCells<values>{blocks > 1 ? in_block(shared, other) : shared, shared_cells.half}.add_to(totals, i);
      Pack<Result, 4, true> numbers;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        numbers.lane[k] = static_cast<Result>(totals[k]);
        if (is_voxel && totals[k] != 0)
          numbers.lane[k] = static_cast<Result>(number_of(values, steps, step, totals[k], divisor));
      }
      if (cells % 4 == 0)
        *reinterpret_cast<Pack<Result, 4, true>*>(frame(step) + i) = numbers;
      else
        for (int k = 0; k < 4 && i + k < cells; ++k) frame(step)[i + k] = numbers.lane[k];
    }
    synchronise();  // other blocks read the shared memory of this one
  }
  if (!is_right) a.redone[sample] = sample;
}

// Waits until all blocks of the grid have arrived here for the `time`-th time. Their writes are visible afterwards.
__device__ __forceinline__ void wait_for_grid(Int* arrived, int time) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(reinterpret_cast<unsigned long long*>(arrived), 1ull);
    while (*static_cast<volatile Int*>(arrived) + 1 < Int{time} * gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
}

// True if frames_in_global computes the frames of a sample.
__device__ __forceinline__ bool is_in_global(const FramesArguments& a, Int sample) {
  return a.redone == nullptr || a.redone[sample] >= 0;
}

// A block adds `events_of_block` consecutive events to frames in global memory.
template <Values values, class T, class X, class Y, class P, class Number>
__device__ __forceinline__ void add_events(const FramesArguments& a, Int first) {
  constexpr bool is_voxel = values == Values::voxel;
  const Int last = ::min(first + events_of_block, a.events);
  int sample = -1;
  Int end = first;
  Steps steps;
  for (Int number = first + threadIdx.x; number < last; number += blockDim.x) {
    if (number >= end) {
      sample = sample_of(a, number);
      steps = steps_of_sample<T>(a, is_voxel, sample);
      end = a.offsets[sample + 1];
    }
    if (!is_in_global(a, sample)) continue;
    const Event event = load<T, X, Y, P>(a, number);
    const Placed at = place(a, steps, row_width(a, values), sample, number, event);
    const Int step = at.scaled < 0 ? -1 : quotient_of(at.scaled, steps.length);
    if (at.cell >= 0 && step >= 0 && step < a.steps)
      add_event<values, Number>(a, steps, sample, step, at.scaled - step * steps.length, at.cell, sign_of(a, event.p));
  }
}

// Computes the numbers of a cell of a sample, at all steps: from `out`, or in place from the times of frames_in_shared.
// Times are since the begin of their step.
template <Values values, class T, class Number>
__device__ __forceinline__ void finish_cell(const FramesArguments& a, int sample, Int item) {
  constexpr int together = 4;  // steps that are loaded at once
  using Since = typename Stored<Values::surface, Number>::Type;
  const bool is_global = values == Values::voxel || is_in_global(a, sample);
  const Steps steps = steps_of_sample<T>(a, values == Values::voxel, sample);
  const Divisor divisor(divisor_of(a, values, steps));
  Int latest = 0;
  for (int begin = 0; begin < a.steps; begin += together) {
    Int sums[together];
#pragma unroll
    for (int k = 0; k < together; ++k) {
      const Int i = ::min(begin + k, a.steps - 1) * (a.samples * a.cells) + item;
      sums[k] = is_global ? __ldcg(static_cast<const Int*>(a.out) + i) : static_cast<const Since*>(a.numbers)[i];
    }
#pragma unroll
    for (int k = 0; k < together; ++k) {
      if (begin + k >= a.steps) break;
      if (values == Values::voxel)
        latest = sums[k];
      else if (sums[k] != 0)
        latest = (begin + k) * steps.length + sums[k];
      const Number number = static_cast<Number>(number_of(values, steps, begin + k, latest, divisor));
      static_cast<Number*>(a.numbers)[(begin + k) * (a.samples * a.cells) + item] =
          values == Values::surface ? exp(number) : number;
    }
  }
}

// Computes frames in global memory, those of all samples or of the ones in `redone`, and completes surfaces.
template <Values values, class T, class X, class Y, class P, class Number>
__device__ __forceinline__ void frames_in_global(const FramesArguments& a) {
  const Int thread = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Int all = static_cast<Int>(gridDim.x) * blockDim.x;
  bool is_needed = false;
  for (int i = threadIdx.x; i < a.samples; i += blockDim.x) is_needed |= is_in_global(a, i);
  if (__syncthreads_or(is_needed)) {
    using Sum = Either<has_second_pass(values), Int, typename Stored<values, Number>::Type>;
    if (a.redone == nullptr && blockIdx.x == 0) check_offsets(a);
    for (Int i = thread; i < a.steps * a.samples * a.cells; i += all)
      if (a.redone == nullptr || is_in_global(a, i / a.cells % a.samples)) static_cast<Sum*>(a.out)[i] = 0;
    wait_for_grid(a.arrived, 1);
    for (Int first = static_cast<Int>(blockIdx.x) * events_of_block; first < a.events;
         first += static_cast<Int>(gridDim.x) * events_of_block)
      add_events<values, T, X, Y, P, Number>(a, first);
    if constexpr (has_second_pass(values)) wait_for_grid(a.arrived, 2);
  } else if (values != Values::surface) {
    return;
  }
  if constexpr (has_second_pass(values))
    for (Int item = thread; item < a.samples * a.cells; item += all) {
      const int sample = static_cast<int>(item / a.cells);
      if (values == Values::surface || is_in_global(a, sample)) finish_cell<values, T, Number>(a, sample, item);
    }
}

}  // namespace frames
}  // namespace spikeforge
