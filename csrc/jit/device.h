#pragma once

namespace spikeforge::jit {

struct Device {
  int major, minor;  // compute capability
  int multiprocessors;
};

}  // namespace spikeforge::jit
