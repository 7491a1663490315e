#pragma once
#include "csrc/base/export.h"

#include <stdexcept>

namespace spikeforge::jit {

// Exported, so that one thrown inside the library is caught by its type outside of it.
struct SPIKEFORGE_API RuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// No usable NVRTC on this machine: kernels can still come from the disk cache.
struct SPIKEFORGE_API NvrtcNotFound : RuntimeError {
  using RuntimeError::RuntimeError;
};

struct SPIKEFORGE_API CompileError : RuntimeError {
  using RuntimeError::RuntimeError;
};

struct SPIKEFORGE_API DriverError : RuntimeError {
  using RuntimeError::RuntimeError;
};

// The driver works, but does not take this image.
struct SPIKEFORGE_API ImageRefused : DriverError {
  using DriverError::DriverError;
};

}  // namespace spikeforge::jit
