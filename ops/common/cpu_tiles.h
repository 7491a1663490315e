// How an operator's CPU kernels are spread over threads: for predefined and traced neurons alike.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace spikeforge::ops {

struct Tiles {
  std::int64_t neurons, size, count;
  bool one_thread;
};

// As many tiles for each thread, of about the same size and none above `largest`, a multiple of 64; they end on whole
// cache lines and vectors. Little work is left to one thread.
Tiles tiles_of(std::int64_t neurons, std::int64_t steps, std::int64_t largest);

// Of whole samples of so many neurons each, at most `largest` a tile.
Tiles tiles_of_samples(std::int64_t samples, std::int64_t width, std::int64_t steps, std::int64_t largest);

// Memory that this thread keeps from call to call, on a cache line.
void* thread_scratch(std::size_t bytes);

// kernel(begin, end, scratch) for every tile, with so many bytes of scratch memory.
template <class Kernel>
void run_tiles(const Tiles& tiles, std::size_t scratch_bytes, const Kernel& kernel) {
  at::parallel_for(0, tiles.count, tiles.one_thread ? tiles.count : 1, [&](std::int64_t first, std::int64_t last) {
    void* const scratch = thread_scratch(scratch_bytes);
    for (std::int64_t t = first; t < last; ++t)
      kernel(t * tiles.size, std::min((t + 1) * tiles.size, tiles.neurons), scratch);
  });
}

}  // namespace spikeforge::ops
