// Frames of the events of cameras: atomic additions of integers, so that the sums do not depend on the order.
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

template <class T>
__device__ __forceinline__ Steps steps_of_sample(const FramesArguments& a, bool is_voxel, int sample) {
  const Int begin = min(max(a.offsets[sample], 0ll), a.events), end = min(max(a.offsets[sample + 1], begin), a.events);
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

// A block adds `events_of_block` consecutive events.
template <Values values, class T, class X, class Y, class P, class Number, int events_of_block>
__device__ __forceinline__ void add_events(const FramesArguments& a) {
  constexpr bool is_voxel = values == Values::voxel;
  const Int first = static_cast<Int>(blockIdx.x) * events_of_block;
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i <= a.samples; i += blockDim.x)
      if (a.offsets[i] != (i == 0 ? 0 : max(a.offsets[i], a.offsets[i - 1])) ||
          (i == a.samples && a.offsets[i] != a.events))
        report(a, a.events);
  int sample = sample_of(a, first);
  Steps steps = steps_of_sample<T>(a, is_voxel, sample);
  Int end = a.offsets[sample + 1];
  for (Int event = first + threadIdx.x; event < min(first + events_of_block, a.events); event += blockDim.x) {
    if (event >= end) {
      sample = sample_of(a, event);
      steps = steps_of_sample<T>(a, is_voxel, sample);
      end = a.offsets[sample + 1];
    }
    const int p = coordinate<P>(a.p, event);
    const int cell = cell_of(a, values == Values::bits ? 32 * a.row_words : a.out_width, sample,
                             coordinate<X>(a.x, event), coordinate<Y>(a.y, event), p);
    const Int time = a.by_count != 0 ? event - a.offsets[sample] : read<T>(a.t, event);
    Int scaled = 0;
    const bool is_placed = scale(steps, time, scaled);
    if (cell == wrong_cell || (!is_placed && steps.begins_with_first)) report(a, event);
    if (cell < 0 || !is_placed || (a.keep != nullptr && a.keep[event] == 0)) continue;
    const Int step = quotient_of(scaled, steps.length);
    if (step < a.steps)
      add_event<values, Number>(a, steps, sample, step, scaled - step * steps.length, cell, sign_of(a, p));
  }
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
