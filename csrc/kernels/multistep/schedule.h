// The schedule of the GPU's multistep loop: the only place that chooses widths, prefetch and checkpoints, with the
// reasons.
#pragma once

#include "csrc/kernels/multistep/launch.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace spikeforge::kernels {

struct Schedule {
  std::uint8_t width = 1;       // neurons per thread
  bool neighbours = true;       // true if they are read in one access; else they are a warp apart
  std::uint8_t rows = 1;        // forward: rows of x in flight
  bool staged = false;          // forward: true if they are staged in shared memory
  std::uint8_t checkpoint = 1;  // steps from one saved state to the next; backward: the segment loaded at once
  std::uint8_t segments = 1;    // backward: segments of the same neurons that a block computes concurrently
  bool ragged = false;          // backward: true if T is not a multiple of the steps per segment
  bool in_turns = false;        // true if a thread processes several neurons in a loop
  bool one_segment = false;     // backward, in turns: true if the sequence is no longer than a segment
  bool whole_stores = false;    // true if the compiler must not split a vector store

  bool operator==(const Schedule&) const = default;
};

// For tests and measurements: SPIKEFORGE_VECTOR_WIDTH, SPIKEFORGE_PREFETCH, SPIKEFORGE_CHECKPOINT, SPIKEFORGE_SEGMENTS
// and SPIKEFORGE_TURNS override the choices of a schedule, and SPIKEFORGE_SCAN_BLOCKS the number of blocks that share
// neurons. SPIKEFORGE_CLUSTER, SPIKEFORGE_ROW, SPIKEFORGE_SPLIT and SPIKEFORGE_TILES select the schedule of a recurrent
// layer.
//
// Returns the value of the variable; 0 unless it is a power of two up to 64.
inline int override_of(const char* name) {
  const char* text = std::getenv(name);
  const int value = text ? std::atoi(text) : 0;
  return value > 0 && value <= 64 && std::has_single_bit(static_cast<unsigned>(value)) ? value : 0;
}

constexpr std::int64_t divided(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }  // rounded up

// True if one access reads or writes `width` elements of this size at each row's start; for a sequence that is absent
// or expanded from one element, nothing is required.
bool aligned(const void* data, std::int64_t time_stride, std::size_t element, int width);
bool all_aligned(std::span<const SequenceView> views, std::size_t element, int width);

// True if every row starts at a multiple of `width` neurons, so that one access reads `width` of them.
bool rows_aligned(const ForwardLaunch& launch, int width);
bool rows_aligned(const BackwardLaunch& launch, int width);

Schedule schedule_of(const ForwardLaunch& launch, int multiprocessors);
Schedule schedule_of(const BackwardLaunch& launch, int multiprocessors);

// Returns the number of neurons of a warp. They are contiguous, and the first one's index is a multiple of this number.
constexpr std::int64_t neurons_of_a_warp(const Schedule& schedule) { return std::int64_t{32} * schedule.width; }

// True if all neurons of each warp have the same value of a tensor parameter. The kernel then reads it once, and sums
// its gradient over the warp.
bool shared_by_warps(const ParamView& param, const Schedule& schedule);

// Returns the number of neurons of one turn. If parameters repeat, as those of channels do, a thread processes neurons
// with this stride in a loop: it reads their parameters once, and sums the gradients. Otherwise, one turn has all
// neurons.
std::int64_t neurons_at_once(const ForwardLaunch& launch, const Schedule& schedule, int multiprocessors);
std::int64_t neurons_at_once(const BackwardLaunch& launch, const Schedule& schedule, int multiprocessors);

struct Grid {
  std::int64_t blocks;
  unsigned block;  // threads
};
// Returns the grid for the neurons of one turn.
Grid grid_of(const Schedule& schedule, std::int64_t neurons, int multiprocessors);

// Returns the maximum number of threads per block, for which the kernel is compiled.
unsigned max_block_size(const Schedule& schedule);

}  // namespace spikeforge::kernels
