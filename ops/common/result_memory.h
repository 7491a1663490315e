// Memory for results on the CPU.
#pragma once

#include <c10/core/Allocator.h>

namespace spikeforge::ops {

// torch's allocator for small results. Large ones use memory of this library, aligned to large pages, which is kept
// when its tensor is freed and reused for a later result of about its size: without that, most of the time of a large
// result is the first touch of its pages. The kept memory is bounded (SPIKEFORGE_RESULT_CACHE_MB), and the system may
// reclaim its pages when it needs them. If a program has set its own CPU allocator, that is used for all results.
c10::Allocator* result_allocator();

}  // namespace spikeforge::ops
