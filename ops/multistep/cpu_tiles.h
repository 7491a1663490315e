// The distribution of CPU kernels over threads, for predefined and traced neurons.
#pragma once

#include "csrc/cpu/multistep/program.h"
#include "ops/common/thread_scratch.h"
#include "ops/multistep/multistep.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spikeforge::ops {

struct Tiles {
  std::int64_t neurons, size, count;  // size: of the largest tile
  bool one_thread;
  std::vector<std::int64_t> ends = {};  // empty if all tiles have the same size

  std::int64_t begin(std::int64_t tile) const {
    if (ends.empty()) return tile * size;
    return tile == 0 ? 0 : ends[static_cast<std::size_t>(tile - 1)];
  }
  std::int64_t end(std::int64_t tile) const {
    return ends.empty() ? std::min((tile + 1) * size, neurons) : ends[static_cast<std::size_t>(tile)];
  }
};

// Returns the same number of tiles for each thread, of about equal size and at most `largest`, a multiple of 64. They
// end at multiples of cache lines and vectors. Small calls use one thread.
Tiles tiles_of(std::int64_t neurons, std::int64_t steps, std::int64_t largest);

// Returns tiles of whole samples of `width` neurons each, at most `largest` per tile.
Tiles tiles_of_samples(std::int64_t samples, std::int64_t width, std::int64_t steps, std::int64_t largest);

// Returns tiles for samples of different lengths: each is a part of a sample, or several samples if they have few
// neurons. Threads get about the same number of steps.
Tiles tiles_of_lengths(const LengthsView& lengths, std::int64_t neurons, std::int64_t steps, std::int64_t largest);

// Runs the cell's loop over every tile; `scratch_bytes` and `run` are those of the forward or the backward pass. The
// values of tensor parameters are checked as they are loaded.
template <class AnyLaunch, class ScratchBytes, class Run>
void run_tiles(const MultistepCall& call, const Tiles& tiles, const AnyLaunch& launch, const cpu::Program& program,
               ScratchBytes scratch_bytes, Run run) {
  std::atomic<bool> all_legal = true;
  const std::size_t bytes = scratch_bytes(launch, program.context, tiles.size);
  const auto run_tile = [&](std::int64_t tile, void* scratch) {
    if (!run(launch, program.context, tiles.begin(tile), tiles.end(tile), scratch))
      all_legal.store(false, std::memory_order_relaxed);
  };
  if (launch.lengths.data == nullptr) {
    at::parallel_for(0, tiles.count, tiles.one_thread ? tiles.count : 1, [&](std::int64_t first, std::int64_t last) {
      void* const scratch = thread_scratch(bytes);
      for (std::int64_t t = first; t < last; ++t) run_tile(t, scratch);
    });
  } else {
    // Tiles take different times, so they are assigned dynamically.
    std::atomic<std::int64_t> next = 0;
    const std::int64_t threads = tiles.one_thread ? 1 : std::min<std::int64_t>(at::get_num_threads(), tiles.count);
    at::parallel_for(0, threads, 1, [&](std::int64_t, std::int64_t) {
      void* const scratch = thread_scratch(bytes);
      for (std::int64_t t = next++; t < tiles.count; t = next++) run_tile(t, scratch);
    });
  }
  if (!all_legal) refuse_values(call);
}

// Runs a launch of a cell that has a composition as a scan over time: threads process segments of the sequence
// concurrently, for neurons too few to give each thread some. Returns false, without an effect, if the loop is at least
// as fast.
bool scan_cpu(const ForwardLaunch& launch);

}  // namespace spikeforge::ops
