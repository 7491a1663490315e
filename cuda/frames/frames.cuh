// Frames of the events of cameras: atomic additions of integers, so that the sums do not depend on the order.
//
// add_events adds events to frames in global memory. frame_in_shared computes a frame in shared memory, from the events
// between two binary searches, and writes it once. If the events of a sample are not sorted by time, the frames of this
// sample are computed by a second launch, in which each block reads all events of the sample.
#pragma once

#include "csrc/kernels/frames/arguments.h"
#include "cuda/rows.cuh"

namespace spikeforge {
namespace frames {

template <class T> __device__ __forceinline__ Int read(const void* column, Int i) {
  return static_cast<Int>(static_cast<const T*>(column)[i]);
}

// Converts a number of a column. One outside of int becomes the least int, which is on no sensor.
template <class Number, class T> __device__ __forceinline__ Number number_in(T number) {
  return static_cast<Int>(number) == static_cast<Int>(static_cast<Number>(number)) ? static_cast<Number>(number)
                                                                                   : -2147483647 - 1;
}

template <class T> __device__ __forceinline__ int coordinate(const void* column, Int i) {
  return column == nullptr ? 0 : number_in<int>(static_cast<const T*>(column)[i]);
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
  const auto index = [&](Int of_step) { return (of_step * a.samples + sample) * a.cells + cell; };
  if constexpr (values == Values::count) add(static_cast<Number*>(a.out) + index(step), Number(1));
  if constexpr (values == Values::binary) static_cast<Number*>(a.out)[index(step)] = Number(1);
  if constexpr (values == Values::bits) {
    const Int columns = Int{32} * a.row_words, row = cell / columns, column = cell % columns;
    const Int word = (step * a.samples + sample) * a.cells + row * a.row_words + column / 32;
    atomicOr(static_cast<unsigned*>(a.out) + word, 1u << (column % 32));
  }
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

constexpr int ahead = 4;  // consecutive events that a thread loads at once

// Reads `ahead` numbers from a multiple of `ahead` on, up to the end of the column. A missing column has zeros.
template <class T, class Number>
__device__ __forceinline__ void load_column(const void* column, Int first, Int events, Number (&numbers)[ahead]) {
  using Four = Pack<T, ahead, true>;
  const T* const from = static_cast<const T*>(column) + first;
  Four four;
  four.fill(T(0));
  if (column != nullptr && first + ahead <= events && reinterpret_cast<unsigned long long>(column) % sizeof(Four) == 0)
    four = *reinterpret_cast<const Four*>(from);
  else if (column != nullptr)
    for (int i = 0; i < ahead; ++i)
      if (first + i < events) four.lane[i] = from[i];
#pragma unroll
  for (int i = 0; i < ahead; ++i) numbers[i] = number_in<Number>(four.lane[i]);
}

template <class T, class X, class Y, class P> struct Events {
  Int position[ahead];
  int x[ahead], y[ahead], p[ahead];

  __device__ __forceinline__ void load(const FramesArguments& a, Int first) {
    load_column<X>(a.x, first, a.events, x);
    load_column<Y>(a.y, first, a.events, y);
    load_column<P>(a.p, first, a.events, p);
    if (a.by_count == 0) load_column<T>(a.t, first, a.events, position);
    if (a.by_count != 0)
      for (int i = 0; i < ahead; ++i) position[i] = first + i;
  }
  __device__ __forceinline__ Event operator[](int i) const { return {position[i], x[i], y[i], p[i]}; }
};

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

template <Values values> __device__ __forceinline__ int row_width(const FramesArguments& a) {
  return values == Values::bits ? 32 * a.row_words : a.out_width;
}

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
  for (Int base = first + threadIdx.x * ahead; base < last; base += ahead * blockDim.x) {
    Events<T, X, Y, P> events;
    events.load(a, base);
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const Int number = base + i;
      if (number >= last) break;
      if (number >= end) {
        sample = sample_of(a, number);
        steps = steps_of_sample<T>(a, is_voxel, sample);
        end = a.offsets[sample + 1];
      }
      const Placed at = place(a, steps, row_width<values>(a), sample, a.offsets[sample], number, events[i]);
      if (at.cell >= 0 && at.step >= 0 && at.step < a.steps)
        add_event<values, Number>(a, steps, sample, at.step, at.remainder, at.cell, sign_of(a, events.p[i]));
    }
  }
}

// A search by all threads of a block for the first event that is not before a scaled time, if times ascend.
struct Search {
  Int low, high, bound;

  template <class T>
  __device__ __forceinline__ bool is_before(const FramesArguments& a, const Steps& steps, Int probe) const {
    Int scaled = -1;
    return probe < high && (!scale(steps, read<T>(a.t, probe), scaled) || scaled < bound);
  }
};

// Returns the events of the scaled times [from, to), if those of the sample are sorted by time.
template <class T>
__device__ __forceinline__ Range events_between(const FramesArguments& a, const Steps& steps, Range sample, Int from,
                                                Int to) {
  if (a.by_count != 0) return {::min(sample.begin + from, sample.end), ::min(sample.begin + to, sample.end)};
  Search first{sample.begin, sample.end, from}, last{sample.begin, sample.end, to};
  while (first.low < first.high || last.low < last.high) {
    const Int stride = (::max(first.high - first.low, last.high - last.low) + blockDim.x - 1) / blockDim.x;
    const Int probe = (threadIdx.x + 1) * stride - 1;
    const Int before_first = __syncthreads_count(first.is_before<T>(a, steps, first.low + probe));
    const Int before_last = __syncthreads_count(last.is_before<T>(a, steps, last.low + probe));
    first.high = ::min(first.high, first.low + (before_first + 1) * stride - 1);
    first.low += before_first * stride;
    last.high = ::min(last.high, last.low + (before_last + 1) * stride - 1);
    last.low += before_last * stride;
  }
  return {first.low, last.low};
}

// Cells in shared memory: counters of 16 bits in the first launch and of 32 in the second, single bits, or the sums of
// voxels and the times of surfaces in 64 bits.
template <Values values, bool is_second> struct SharedCells {
  static constexpr bool is_wide = values == Values::voxel || values == Values::surface;
  static constexpr int bits = is_wide ? 64 : values != Values::count ? 1 : is_second ? 32 : 16;
  unsigned* words;

  __device__ __forceinline__ void clear(int cells) const {
    for (int i = threadIdx.x; i < (static_cast<Int>(cells) * bits + 31) / 32; i += blockDim.x) words[i] = 0;
  }

  // Adds an event at `scaled` to a cell of `step`; voxels also have the events of the step before. Returns false if a
  // counter overflows.
  __device__ __forceinline__ bool add(const Steps& steps, int step, Int scaled, int cell, Int sign) const {
    auto* const wide = reinterpret_cast<unsigned long long*>(words) + cell;
    const Int since = scaled - step * steps.length;
    if constexpr (values == Values::voxel)
      atomicAdd(wide,
                static_cast<unsigned long long>(sign * (since < 0 ? steps.length + since : steps.length - since)));
    if constexpr (values == Values::surface) atomicMax(wide, static_cast<unsigned long long>(scaled + 1));
    if constexpr (bits == 1) atomicOr(words + cell / 32, 1u << (cell % 32));
    if constexpr (bits == 32) atomicAdd(words + cell, 1u);
    if constexpr (bits == 16) {
      const unsigned shift = cell % 2 * 16;
      return (atomicAdd(words + cell / 2, 1u << shift) >> shift & 0xffffu) != 0xffffu;
    }
    return true;
  }

  __device__ __forceinline__ Int operator[](int cell) const {
    if constexpr (is_wide) return reinterpret_cast<const Int*>(words)[cell];
    if constexpr (bits == 32) return words[cell];
    return words[cell * bits / 32] >> (cell * bits % 32) & ((1u << bits % 32) - 1);
  }
};

// A block computes a frame, or a channel of a frame of 64-bit cells. In the first launch, it reads the events between
// two binary searches; the second launch is for samples that are not sorted by time, or whose counters overflow.
template <Values values, class T, class X, class Y, class P, class Number, bool is_second>
__device__ __forceinline__ void frame_in_shared(const FramesArguments& a) {
  using Cells = SharedCells<values, is_second>;
  constexpr bool is_voxel = values == Values::voxel;
  extern __shared__ __align__(16) unsigned shared[];
  const Cells shared_cells{shared};
  const int parts = Cells::is_wide ? a.channels : 1;
  const int frame = static_cast<int>(blockIdx.x) / parts;
  const int sample = frame % a.samples, step = frame / a.samples;
  if (is_second && a.redone[sample] < 0) return;
  if (!is_second && blockIdx.x == 0) check_offsets(a);
  const int width = row_width<values>(a);
  const int cells = a.channels * a.out_height * width / parts,
            first_cell = static_cast<int>(blockIdx.x) % parts * cells;
  shared_cells.clear(cells);
  const Range all = events_of(a, sample);
  const Steps steps = steps_of_sample<T>(a, is_voxel, sample);
  const Int from = (is_voxel ? step - 1 : step) * steps.length, to = (step + 1) * steps.length;
  Range range = is_second ? all : events_between<T>(a, steps, all, from, to);
  bool is_right = range.begin <= range.end;
  // The first and the last block also check the events that are skipped.
  if (step == 0) range.begin = all.begin;
  if (step + 1 == a.steps) range.end = all.end;
  const bool is_whole = has_whole_frames(a);
  const Int start = a.by_count != 0 ? all.begin : steps.start;
  const auto add = [&](Int scaled, int cell, int p) {
    if (is_below(cell - first_cell, cells))
      is_right &= shared_cells.add(steps, step, scaled, cell - first_cell, sign_of(a, p));
  };
  __syncthreads();
  for (Int base = range.begin / ahead * ahead + threadIdx.x * ahead; base < range.end; base += ahead * blockDim.x) {
    Events<T, X, Y, P> events;
    events.load(a, base);
    Int before = base > all.begin ? (a.by_count != 0 ? base - 1 : read<T>(a.t, base - 1)) : events.position[0];
    unsigned others = 0;  // events that need the slow path: of other steps, wrong ones, and all in partial frames
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const Int number = base + i, since = difference(events.position[i], start);
      const int cell = is_whole ? whole_cell_of(a, width, events.x[i], events.y[i], events.p[i]) : no_cell;
      if (number > all.begin && number < range.end) is_right &= is_second || before <= events.position[i];
      before = events.position[i];
      if (number < range.begin || number >= range.end) continue;
      const Int scaled = is_voxel ? since * steps.factor : since;
      const bool is_safe = !is_voxel || (static_cast<unsigned long long>(since) >> 32) == 0;
      if (cell >= 0 && is_safe && is_below(scaled - from, to - from))
        add(scaled, cell, events.p[i]);
      else
        others |= 1u << i;
    }
    for (; others != 0; others &= others - 1) {
      const Int number = base + __ffs(others) - 1;
      const Event event{a.by_count != 0 ? number : read<T>(a.t, number), coordinate<X>(a.x, number),
                        coordinate<Y>(a.y, number), coordinate<P>(a.p, number)};
      const Placed at = place(a, steps, width, sample, all.begin, number, event);
      if (at.cell >= 0 && (at.step == step || (is_voxel && at.step >= 0 && at.step == step - 1)))
        add(at.step * steps.length + at.remainder, at.cell, event.p);
    }
  }
  if (!is_second && !is_right) a.redone[sample] = sample;
  __syncthreads();
  const Int begin = static_cast<Int>(blockIdx.x) * (values == Values::bits ? cells / 32 : cells);
  if constexpr (values == Values::bits) {
    for (int i = threadIdx.x; i < cells / 32; i += blockDim.x) static_cast<unsigned*>(a.out)[begin + i] = shared[i];
    return;
  }
  for (int i = threadIdx.x; i < cells; i += blockDim.x) {
    const Int number = shared_cells[i];
    Int none = 0;
    if constexpr (values == Values::surface)
      static_cast<Int*>(a.out)[begin + i] = number;
    else
      static_cast<Number*>(a.numbers)[begin + i] =
          static_cast<Number>(is_voxel ? number_of(a, values, steps, step, number, none) : static_cast<Number>(number));
  }
}

// A thread computes the numbers of a cell of a sample, at all steps.
template <Values values, class T, class Number> __device__ __forceinline__ void finish(const FramesArguments& a) {
  const Int item = static_cast<Int>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= a.samples * a.cells) return;
  const Steps steps = steps_of_sample<T>(a, values == Values::voxel, static_cast<int>(item / a.cells));
  Int last = 0;
  for (int step = 0; step < a.steps; ++step) {
    const Int index = step * a.samples * a.cells + item;
    const Int sum = static_cast<const Int*>(a.out)[index];
    static_cast<Number*>(a.numbers)[index] = static_cast<Number>(number_of(a, values, steps, step, sum, last));
  }
}

}  // namespace frames
}  // namespace spikeforge
