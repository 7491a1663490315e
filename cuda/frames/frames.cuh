// Frames of the events of cameras: atomic additions of integers, so that the sums do not depend on the order.
//
// add_events adds events to frames in global memory. frame_in_shared computes a frame in shared memory, from the events
// between two binary searches, and writes it once. If the events of a sample are not sorted by time, the frames of this
// sample are computed by a second launch, in which each block reads all events of the sample.
#pragma once

#include "csrc/kernels/frames/arguments.h"

namespace spikeforge {
namespace frames {

template <class T> __device__ __forceinline__ Int read(const void* column, Int i) {
  return static_cast<Int>(static_cast<const T*>(column)[i]);
}

// A coordinate outside of int becomes the least int, which is on no sensor.
template <class T> __device__ __forceinline__ int coordinate(const void* column, Int i) {
  if (column == nullptr) return 0;
  const Int value = read<T>(column, i);
  return value == static_cast<int>(value) ? static_cast<int>(value) : -2147483647 - 1;
}

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

template <class T>
__device__ __forceinline__ Steps steps_of_sample(const FramesArguments& a, bool is_voxel, int sample) {
  const Int begin = events_of(a, sample).begin, end = events_of(a, sample).end;
  if (begin == end) return {0, 1, 1, false};
  return steps_of(a, is_voxel, sample, end - begin, read<T>(a.t, begin), read<T>(a.t, end - 1));
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
  if constexpr (values == Values::surface)
    atomicMax(static_cast<Int*>(a.out) + index(step), step * steps.length + remainder + 1);
}

// The columns of an event. `position` is its time, or its number in the batch if steps are counted.
struct Event {
  Int position;
  int x, y, p;
};

template <class T, class X, class Y, class P>
__device__ __forceinline__ Event load(const FramesArguments& a, Int event) {
  return {a.by_count != 0 ? event : read<T>(a.t, event), coordinate<X>(a.x, event), coordinate<Y>(a.y, event),
          coordinate<P>(a.p, event)};
}

// The step of an event, or -1 if it is skipped, and its place.
struct Placed {
  Int step = -1, remainder = 0;
  int cell = no_cell;
};

// Reports wrong events. `begin` is the number of the sample's first event.
__device__ __forceinline__ Placed place(const FramesArguments& a, const Steps& steps, int out_width, int sample,
                                        Int begin, Int number, const Event& event) {
  Placed placed;
  placed.cell = cell_of(a, out_width, sample, event.x, event.y, event.p);
  Int scaled = 0;
  const bool has_step = scale(steps, a.by_count != 0 ? event.position - begin : event.position, scaled);
  if (placed.cell == wrong_cell || (!has_step && steps.begins_with_first)) report(a, number);
  if (a.keep != nullptr && a.keep[number] == 0) placed.cell = no_cell;
  if (!has_step) return placed;
  placed.step = quotient_of(scaled, steps.length);
  placed.remainder = scaled - placed.step * steps.length;
  return placed;
}

constexpr int ahead = 4;  // events that a thread loads at once

__device__ __forceinline__ void check_offsets(const FramesArguments& a) {
  for (int i = threadIdx.x; i <= a.samples; i += blockDim.x)
    if (a.offsets[i] != (i == 0 ? 0 : ::max(a.offsets[i], a.offsets[i - 1])) ||
        (i == a.samples && a.offsets[i] != a.events))
      report(a, a.events);
}

// A block adds `events_of_block` consecutive events.
template <Values values, class T, class X, class Y, class P, class Number, int events_of_block>
__device__ __forceinline__ void add_events(const FramesArguments& a) {
  constexpr bool is_voxel = values == Values::voxel;
  const Int first = static_cast<Int>(blockIdx.x) * events_of_block;
  if (blockIdx.x == 0) check_offsets(a);
  int sample = sample_of(a, first);
  Steps steps = steps_of_sample<T>(a, is_voxel, sample);
  Int end = a.offsets[sample + 1];
  const Int last = ::min(first + events_of_block, a.events);
  for (Int base = first + threadIdx.x; base < last; base += ahead * blockDim.x) {
    Event events[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) events[i] = load<T, X, Y, P>(a, ::min(base + i * blockDim.x, last - 1));
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const Int number = base + i * blockDim.x;
      if (number >= last) break;
      if (number >= end) {
        sample = sample_of(a, number);
        steps = steps_of_sample<T>(a, is_voxel, sample);
        end = a.offsets[sample + 1];
      }
      const Placed at = place(a, steps, row_width(a, values), sample, a.offsets[sample], number, events[i]);
      if (at.cell >= 0 && at.step >= 0 && at.step < a.steps)
        add_event<values, Number>(a, steps, sample, at.step, at.remainder, at.cell, sign_of(a, events[i].p));
    }
  }
}

// A search by all threads of a block for the first event that is not before a scaled time, if times ascend.
struct Search {
  Int low, high, bound;

  template <class T> __device__ __forceinline__ bool is_before(const FramesArguments& a, Int start, Int probe) const {
    const Int time = probe < high ? read<T>(a.t, probe) : 0;
    return probe < high && (time < start || difference(time, start) < bound);
  }
};

// Returns the events of a step, if those of the sample are sorted by time.
template <class T>
__device__ __forceinline__ Range events_of_step(const FramesArguments& a, const Steps& steps, Range sample, Int step) {
  const Int bound = step * steps.length;
  if (a.by_count != 0)
    return {::min(sample.begin + bound, sample.end), ::min(sample.begin + bound + steps.length, sample.end)};
  Search first{sample.begin, sample.end, bound}, last{sample.begin, sample.end, bound + steps.length};
  while (first.low < first.high || last.low < last.high) {
    const Int stride = (::max(first.high - first.low, last.high - last.low) + blockDim.x - 1) / blockDim.x;
    const Int probe = (threadIdx.x + 1) * stride - 1;
    const Int before_first = __syncthreads_count(first.is_before<T>(a, steps.start, first.low + probe));
    const Int before_last = __syncthreads_count(last.is_before<T>(a, steps.start, last.low + probe));
    first.high = ::min(first.high, first.low + (before_first + 1) * stride - 1);
    first.low += before_first * stride;
    last.high = ::min(last.high, last.low + (before_last + 1) * stride - 1);
    last.low += before_last * stride;
  }
  return {first.low, last.low};
}

// Counters of events in shared memory, `bits` each, or one bit. Returns false if a counter overflows.
template <Values values, int bits> __device__ __forceinline__ bool add_to_shared(unsigned* shared, int cell) {
  if constexpr (values != Values::count) {
    atomicOr(shared + cell / 32, 1u << (cell % 32));
    return true;
  }
  if constexpr (bits == 32) {
    atomicAdd(shared + cell, 1u);
    return true;
  }
  const unsigned shift = cell % 2 * 16;
  return (atomicAdd(shared + cell / 2, 1u << shift) >> shift & 0xffffu) != 0xffffu;
}

template <Values values, int bits> __device__ __forceinline__ unsigned shared_number(const unsigned* shared, int i) {
  if (values == Values::binary) return shared[i / 32] >> (i % 32) & 1u;
  if (values == Values::bits || bits == 32) return shared[i];
  return shared[i / 2] >> (i % 2 * 16) & 0xffffu;
}

// Words of bits are stored as they are.
template <bool is_bits, class Number> struct StoredAs { using Type = Number; };
template <class Number> struct StoredAs<true, Number> { using Type = unsigned; };

// A block computes a frame. Its number is that of the frame. In the first launch, it reads the events between two
// binary searches, and has counters of 16 bits; the second launch is for samples that are not sorted by time, or whose
// counters overflow.
template <Values values, class T, class X, class Y, class P, class Number, bool is_second>
__device__ __forceinline__ void frame_in_shared(const FramesArguments& a) {
  constexpr int bits = is_second ? 32 : 16;
  extern __shared__ __align__(16) unsigned shared[];
  const int sample = static_cast<int>(blockIdx.x) % a.samples, step = static_cast<int>(blockIdx.x) / a.samples;
  if (is_second && a.redone[sample] < 0) return;
  if (!is_second && blockIdx.x == 0) check_offsets(a);
  const int cells = static_cast<int>(a.cells);
  const int words = values == Values::binary  ? (cells + 31) / 32
                    : values == Values::count ? cells * bits / 32 + 1
                                              : cells;
  for (int i = threadIdx.x; i < words; i += blockDim.x) shared[i] = 0;
  const Range all = events_of(a, sample);
  const Steps steps = steps_of_sample<T>(a, false, sample);
  Range range = is_second ? all : events_of_step<T>(a, steps, all, step);
  bool is_right = range.begin <= range.end;
  // The first and the last block also check the events that are skipped.
  if (step == 0) range.begin = all.begin;
  if (step + 1 == a.steps) range.end = all.end;
  const bool is_whole = !is_second && has_whole_frames(a);  // the second launch has the slow path alone
  const int width = row_width(a, values);
  const Int begin_of_step = (a.by_count != 0 ? all.begin : steps.start) + step * steps.length;
  __syncthreads();
  for (Int base = range.begin + threadIdx.x; base < range.end; base += ahead * blockDim.x) {
    Event events[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) events[i] = load<T, X, Y, P>(a, ::min(base + i * blockDim.x, range.end - 1));
    unsigned others = 0;  // events that need the slow path: of other steps, wrong ones, and all in partial frames
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const Event& event = events[i];
      const int cell = is_whole ? whole_cell_of(a, width, event.x, event.y, event.p) : no_cell;
      if (base + i * blockDim.x >= range.end) continue;
      if (cell >= 0 && is_below(difference(event.position, begin_of_step), steps.length))
        is_right &= add_to_shared<values, bits>(shared, cell);
      else
        others |= 1u << i;
    }
    for (; others != 0; others &= others - 1) {
      const Int number = base + (__ffs(others) - 1) * blockDim.x;
      const Placed at = place(a, steps, width, sample, all.begin, number, load<T, X, Y, P>(a, number));
      if (!is_second && at.step != step) is_right &= at.step < 0 || at.step >= a.steps;
      if (at.step == step && at.cell >= 0) is_right &= add_to_shared<values, bits>(shared, at.cell);
    }
  }
  if (!is_second && !is_right) a.redone[sample] = sample;
  __syncthreads();
  using Stored = typename StoredAs<values == Values::bits, Number>::Type;
  Stored* const out = static_cast<Stored*>(a.out) + static_cast<Int>(blockIdx.x) * a.cells;
  for (int i = threadIdx.x; i < cells; i += blockDim.x)
    out[i] = static_cast<Stored>(shared_number<values, bits>(shared, i));
}

// A thread computes the numbers of a cell of a sample, at all steps.
template <Values values, class T, class Number> __device__ __forceinline__ void finish(const FinishArguments& f) {
  const FramesArguments& a = f.frames;
  const Int item = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= a.samples * a.cells) return;
  const Steps steps = steps_of_sample<T>(a, values == Values::voxel, static_cast<int>(item / a.cells));
  Int last = 0;
  for (int step = 0; step < a.steps; ++step) {
    const Int index = step * a.samples * a.cells + item;
    const Int sum = static_cast<const Int*>(a.out)[index];
    static_cast<Number*>(f.numbers)[index] = static_cast<Number>(number_of(a, values, steps, step, sum, last));
  }
}

}  // namespace frames
}  // namespace spikeforge
