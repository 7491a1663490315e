// Compiles kernels on background threads before a call needs them: the kernel of the backward pass, while the call
// compiles the kernel of the forward pass.
#pragma once

#include "csrc/jit/kernel_cache.h"

#include <string>

namespace spikeforge::jit {

// Returns immediately. The image is stored in `cache`. A call during the compilation waits for it; a call before a
// thread is free compiles the kernel itself. A failure is not reported: the call that needs the kernel compiles it
// again, and reports the failure. At exit, pending compilations are dropped. Nothing is compiled before the main thread
// has called this function once, or in a child of fork() whose parent has called it. `cache` and the headers of
// `source` must outlive the last kernel of the process.
void compile_ahead(KernelCache& cache, KernelSource source, std::string arch);

}  // namespace spikeforge::jit
