// Draws networks on a GPU (csrc/kernels/event/connection_rules.h): one kernel for each stage, with the same random
// numbers as on the CPU.
//
// Short names: F type of the arithmetic; T type of a stored number.
#pragma once

#include "csrc/kernels/event/connection_rules.h"
#include "cuda/half.cuh"

namespace spikeforge {
namespace event {

template <class F> __device__ __forceinline__ void for_each_thread(Place count, F&& f) {
  for (Place i = static_cast<Place>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<Place>(gridDim.x) * blockDim.x)
    f(i);
}

template <class F> __device__ __forceinline__ void for_each_block(Place count, F&& f) {
  for (Place i = blockIdx.x; i < count; i += gridDim.x) f(i);
}

__device__ __forceinline__ void count_lines(const ConnectArguments& a) {
  for_each_thread(a.total, [&](Place i) { atomicAdd(a.counted + line_of(a.lines, i), 1); });
}

__device__ __forceinline__ void count_places(const ConnectArguments& a) {
  for_each_thread(a.lines.count, [&](Place line) {
    int count = 0;
    for_each_with_probability(a.lines, line, [&](Place) { ++count; });
    a.counted[line] = count;
  });
}

__device__ __forceinline__ void count_rows(const ConnectArguments& a) {
  for_each_thread(a.total, [&](Place i) { atomicAdd(a.counted + a.drawn[i], 1); });
}

__device__ __forceinline__ void place_rows(const ConnectArguments& a) {
  for_each_thread(a.total, [&](Place i) {
    const int row = a.drawn[i];
    a.indices[a.starts[row] + atomicAdd(a.counted + row, 1)] = static_cast<int>(a.lines.first + i / a.degree);
  });
}

// Sorts a row with all threads of the block: Batcher's bitonic network. Its merges begin with a mirrored comparison, so
// that the smaller number always moves to the lower place, and a row of any length is sorted as one of a power of two
// that is padded with infinities.
__device__ __forceinline__ void sort_row(int* row, int count) {
  const auto compare = [&](long long i, long long j) {
    if (j >= count) return;
    const int a = row[i], b = row[j];
    if (a > b) {
      row[i] = b;
      row[j] = a;
    }
  };
  __syncthreads();
  for (long long size = 2; size < 2LL * count; size *= 2) {
    for (int i = threadIdx.x; i < count; i += blockDim.x)
      if ((i & size / 2) == 0) compare(i, i ^ (size - 1));
    __syncthreads();
    for (long long step = size / 4; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < count; i += blockDim.x)
        if ((i & step) == 0) compare(i, i + step);
      __syncthreads();
    }
  }
}

__device__ __forceinline__ void sort(const ConnectArguments& a) {
  for_each_block(a.lines.count, [&](Place row) { sort_row(a.indices + a.starts[row], a.counts[row]); });
}

// Redraws duplicates except for the first, until all are distinct. It starts at the last element, because a redrawn one
// is not compared again.
__device__ __forceinline__ void draw_distinct(const Lines& lines, Place line, int wanted, int* places) {
  for (unsigned attempt = 1;; ++attempt) {
    sort_row(places, wanted);
    bool alike = false;
    const int threads = static_cast<int>(blockDim.x);
    for (int begin = (wanted - 1) / threads * threads; begin >= 0; begin -= threads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      const bool again = i > 0 && i < wanted && places[i] == places[i - 1];
      __syncthreads();
      if (again) places[i] = static_cast<int>(lines.first + drawn_again(lines, line, i, attempt));
      alike |= again;
    }
    if (__syncthreads_or(alike) == 0) return;
  }
}

// One block per line.
__device__ __forceinline__ void draw(const ConnectArguments& a) {
  const Lines& lines = a.lines;
  for_each_block(lines.count, [&](Place line) {
    int* const places = a.indices + a.starts[line];
    const int count = a.counts[line];
    const bool by_one =
        a.rule == PlaceRule::probable || (a.rule == PlaceRule::distinct && is_dense(lines, line, count));
    if (by_one) {
      if (threadIdx.x != 0) return;
      int written = 0;
      const auto write = [&](Place place) { places[written++] = static_cast<int>(lines.first + place); };
      if (a.rule == PlaceRule::probable)
        for_each_with_probability(lines, line, write);
      else
        for_each_of_a_selection(lines, line, count, write);
      return;
    }
    if (a.rule == PlaceRule::one) {
      if (threadIdx.x == 0 && count != 0) places[0] = static_cast<int>(lines.first + line);
      return;
    }
    for (int block = threadIdx.x; 4LL * block < count; block += blockDim.x) {
      DrawnPlaces drawn{lines, line};
      for (int i = 4 * block; i < count && i < 4 * block + 4; ++i)
        places[i] = static_cast<int>(lines.first + (a.rule == PlaceRule::all ? place_of(lines, line, i) : drawn.at(i)));
    }
    if (a.rule == PlaceRule::distinct) draw_distinct(lines, line, count, places);
  });
}

__device__ __forceinline__ void store(unsigned char* to, double number) {
  *to = static_cast<unsigned char>(floor(number + 0.5));
}
__device__ __forceinline__ void store(int* to, double number) { *to = static_cast<int>(floor(number + 0.5)); }
__device__ __forceinline__ void store(double* to, double number) { *to = number; }
template <class T> __device__ __forceinline__ void store(T* to, double number) {
  *to = convert<T>(static_cast<float>(number));
}

// One warp per line.
template <class T> __device__ __forceinline__ void numbers(const ConnectArguments& a) {
  const Place warps = static_cast<Place>(gridDim.x) * (blockDim.x / 32);
  const Place first = (static_cast<Place>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  for (Place line = first; line < a.lines.count; line += warps) {
    T* const numbers = static_cast<T*>(a.numbers) + a.starts[line];
    const int count = a.counts[line];
    for (int block = threadIdx.x % 32; 2LL * block < count; block += 32) {
      const PhiloxWords words = words_of(a.lines, Purpose::numbers, line, block, 0);
      for (int i = 2 * block; i < count && i < 2 * block + 2; ++i)
        store(numbers + i, number_of_connection(a.lines, a.law, line, i, words, a.of));
    }
  }
}

}  // namespace event
}  // namespace spikeforge
