#pragma once
#include "csrc/base/export.h"

#include <stdexcept>

namespace spikeforge::jit {

// Exported, so that code outside the library can catch it by its type.
struct SPIKEFORGE_API RuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown if the machine has no usable NVRTC: kernels can still be loaded from the disk cache.
struct SPIKEFORGE_API NvrtcNotFound : RuntimeError {
  using RuntimeError::RuntimeError;
};

struct SPIKEFORGE_API CompileError : RuntimeError {
  using RuntimeError::RuntimeError;
};

struct SPIKEFORGE_API DriverError : RuntimeError {
  using RuntimeError::RuntimeError;
};

// Thrown if the driver works but rejects an image.
struct SPIKEFORGE_API ImageRefused : DriverError {
  using DriverError::DriverError;
};

}  // namespace spikeforge::jit
