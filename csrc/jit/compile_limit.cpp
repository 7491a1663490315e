#include "csrc/jit/compile_limit.h"
#include "csrc/base/environment.h"

#include <cstdint>

namespace spikeforge::jit {

std::chrono::milliseconds longest_compilation() {
  constexpr std::uint64_t usual = 120, most = 1000000;
  const std::uint64_t seconds = whole_number_in_environment("SPIKEFORGE_COMPILE_SECONDS").value_or(usual);
  return std::chrono::seconds(seconds > 0 && seconds <= most ? seconds : usual);
}

}  // namespace spikeforge::jit
