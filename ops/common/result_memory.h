// Memory for results on the CPU.
#pragma once

#include <c10/core/Allocator.h>

namespace spikeforge::ops {

// Returns the allocator for results: torch's allocator for small ones, and memory of this library for large ones. That
// memory is aligned to large pages, kept when its tensor is freed, and reused for a later result of about the same
// size: otherwise, most of the time of a large result is the first touch of its pages. The kept memory is bounded
// (SPIKEFORGE_RESULT_CACHE_MB), and the system may reclaim its pages when it needs them. If a program has set its own
// CPU allocator, that is used for all results.
c10::Allocator* result_allocator();

}  // namespace spikeforge::ops
