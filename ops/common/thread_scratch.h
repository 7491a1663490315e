#pragma once
#include <cstddef>

namespace spikeforge::ops {

// Returns memory that the calling thread keeps between calls, aligned to a cache line. A larger request invalidates it.
void* thread_scratch(std::size_t bytes);

}  // namespace spikeforge::ops
