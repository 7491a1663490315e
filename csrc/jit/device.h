#pragma once
#include <string>

namespace spikeforge::jit {

struct Device {
  int major, minor;  // compute capability
  int multiprocessors;
};

// Returns a name such as "sm_90".
inline std::string name_of_arch(const Device& device) {
  return "sm_" + std::to_string(10 * device.major + device.minor);
}

}  // namespace spikeforge::jit
