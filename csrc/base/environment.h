#pragma once
#include <cstdlib>
#include <string>

namespace spikeforge {

// Empty where the variable is not set: nothing here tells the two apart.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace spikeforge
