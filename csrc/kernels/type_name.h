// The names of number types in CUDA sources.
#pragma once

#include "csrc/base/dtype.h"

namespace spikeforge {

constexpr const char* cuda_name(DType type) {
  constexpr const char* names[] = {"f16", "bf16", "float", "double", "int"};
  return names[static_cast<int>(type)];
}

}  // namespace spikeforge
