// Kernels compiled on threads of their own, for calls that are about to need them: a backward pass's, while the forward
// pass's is compiled by the call itself.
#pragma once

#include "csrc/jit/kernel_cache.h"

#include <string>

namespace spikeforge::jit {

// Returns at once. The image is in `cache` afterwards, and a call that comes meanwhile waits for it; a call that comes
// before a thread is free compiles it itself. A failure is not reported: the call that needs the kernel compiles again,
// and reports it. At the end of the process pending compilations are dropped. Nothing is compiled before the main
// thread has called this once, nor in a child of fork() whose parent had called it. `cache` and `source`'s headers must
// outlive the process's last kernel.
void compile_ahead(KernelCache& cache, KernelSource source, std::string arch);

}  // namespace spikeforge::jit
