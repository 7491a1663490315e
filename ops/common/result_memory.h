// Memory for results on the CPU.
#pragma once

#include <c10/core/Allocator.h>

namespace spikeforge::ops {

// torch's allocator for small results. Large ones lie in memory of this library's own, aligned to large pages, which is
// kept when its tensor is gone and given to a later result of about its size: without that, most of the time of a large
// result goes to the first touch of its pages. What is kept is bounded (SPIKEFORGE_RESULT_CACHE_MB), and the system may
// take its pages when it needs them. Where a program has set an allocator of its own for the CPU, that serves all.
c10::Allocator* result_allocator();

}  // namespace spikeforge::ops
