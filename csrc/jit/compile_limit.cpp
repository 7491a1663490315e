#include <spikeforge/base/environment.h>
#include <spikeforge/jit/compile_limit.h>

#include <charconv>
#include <string>
#include <system_error>

namespace spikeforge::jit {

std::chrono::milliseconds longest_compilation() {
  constexpr int usual = 120, most = 1000000;
  const std::string wanted = environment("SPIKEFORGE_COMPILE_SECONDS");
  int seconds = 0;
  const auto read = std::from_chars(wanted.data(), wanted.data() + wanted.size(), seconds);
  const bool is_number = read.ec == std::errc() && read.ptr == wanted.data() + wanted.size();
  return std::chrono::seconds(is_number && seconds > 0 && seconds <= most ? seconds : usual);
}

}  // namespace spikeforge::jit
