#pragma once
#include <span>

namespace spikeforge::jit {

// A header inside the library. Both strings end with a zero: NVRTC takes them as they are.
struct EmbeddedHeader {
  const char* name;  // as it is included: "spikeforge/neuron/lif.h"
  const char* text;
};

// For NVRTC: csrc/neuron/*.h and cuda/*, as they were when the library was built, with includes of the form
// <spikeforge/neuron/lif.h>; written by cmake/embed_headers.cmake.
std::span<const EmbeddedHeader> embedded_headers();

// For the C++ compiler of compiled tapes: csrc/cpu/operations.h and what it includes of the library.
std::span<const EmbeddedHeader> embedded_host_headers();

}  // namespace spikeforge::jit
