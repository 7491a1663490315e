#pragma once

namespace spikeforge {

// For launches that are described but not made: never read, since whether a pointer is null, and its alignment, decide
// a spec.
inline void* somewhere() {
  alignas(64) static char memory[64];
  return memory;
}

}  // namespace spikeforge
