// How the GPU's multistep loop is cut: the one place that chooses widths, prefetch and checkpoints, and why.
#pragma once

#include <spikeforge/runtime/launch.h>

#include <cstdint>

namespace spikeforge::runtime {

struct Schedule {
  std::uint8_t width = 1;       // neurons a thread
  std::uint8_t rows = 1;        // forward: rows of x in flight
  std::uint8_t checkpoint = 1;  // steps from one saved state to the next; backward: the segment that is loaded at once

  bool operator==(const Schedule&) const = default;
};

// Steps between two checkpoints, a power of two. It decides the shape of what the forward pass saves, so it may depend
// only on what is the same on every device and known when a graph is traced with symbolic sizes.
std::int64_t checkpoint_length(DType type, int n_states);

Schedule forward_schedule(const ForwardLaunch& launch, int multiprocessors);
Schedule backward_schedule(const BackwardLaunch& launch, int multiprocessors);

// Threads a block for so many threads in all: fewer where the blocks would not reach every multiprocessor.
unsigned block_size(std::int64_t threads, int multiprocessors);
constexpr unsigned max_block_size = 128;

}  // namespace spikeforge::runtime
