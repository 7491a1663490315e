#pragma once
#include <span>

namespace spikeforge::jit {

// A header that is embedded in the library. Both strings are zero-terminated, as NVRTC requires.
struct EmbeddedHeader {
  const char* name;  // as it is included: "spikeforge/neuron/lif.h"
  const char* text;
};

// Returns the headers for NVRTC: csrc/neuron/*, cuda/* and the argument headers of csrc/kernels/, at build time, with
// includes of the form <spikeforge/neuron/lif.h>. cmake/embed_headers.cmake generates them.
std::span<const EmbeddedHeader> embedded_headers();

// Returns the headers for the C++ compiler at run time: csrc/cpu/operations.h, csrc/cpu/vec.h and the headers of the
// library that generated code needs.
std::span<const EmbeddedHeader> embedded_host_headers();

}  // namespace spikeforge::jit
