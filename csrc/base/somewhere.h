#pragma once

namespace spikeforge {

// Returns a valid pointer for launches that are described but not executed. It is never read: only the alignment of a
// pointer, and whether it is null, affect a spec.
inline void* somewhere() {
  alignas(64) static char memory[64];
  return memory;
}

}  // namespace spikeforge
