// The size of shared memory.
#pragma once

#include "csrc/jit/device.h"

namespace spikeforge::kernels {

// Returns the shared memory available to a block (CUDA programming guide, table of compute capabilities).
inline int most_shared_bytes(const jit::Device& device) {
  const int arch = device.major * 10 + device.minor;
  int kilobytes = 48;
  if (arch == 90 || device.major == 10 || device.major == 11)
    kilobytes = 227;
  else if (arch == 80 || arch == 87)
    kilobytes = 163;
  else if (arch == 86 || arch == 89 || device.major == 12)
    kilobytes = 99;
  else if (arch == 70)
    kilobytes = 96;
  return kilobytes << 10;
}

}  // namespace spikeforge::kernels
