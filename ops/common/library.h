// How the library spikeforge is registered with torch: SPIKEFORGE_SCHEMAS(library) { ... } and SPIKEFORGE_KERNELS(CPU,
// library) { ... } are torch's TORCH_LIBRARY_FRAGMENT and TORCH_LIBRARY_IMPL, but for a process into which the library
// is loaded twice, from two files (a wheel's and a build's). torch throws at the second one's first schema, while it is
// loaded, which ends the process. So the second registers nothing, says so, and is served by the first one's operators.
#pragma once

#include <torch/library.h>

namespace spikeforge::ops {

// Whether no other copy of the library was loaded before this one. Asked first before anything is registered.
bool is_first_copy();

}  // namespace spikeforge::ops

#define SPIKEFORGE_SCHEMAS(library) SPIKEFORGE_REGISTERED(TORCH_LIBRARY_FRAGMENT(spikeforge, given), library, C10_UID)
#define SPIKEFORGE_KERNELS(key, library) \
  SPIKEFORGE_REGISTERED(TORCH_LIBRARY_IMPL(spikeforge, key, given), library, C10_UID)
#define SPIKEFORGE_REGISTERED(by_torch, library, id)                                           \
  static void C10_CONCATENATE(spikeforge_registers_, id)(torch::Library&);                     \
  by_torch {                                                                                   \
    if (::spikeforge::ops::is_first_copy()) C10_CONCATENATE(spikeforge_registers_, id)(given); \
  }                                                                                            \
  void C10_CONCATENATE(spikeforge_registers_, id)(torch::Library & library)
