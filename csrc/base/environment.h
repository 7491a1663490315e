#pragma once
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>

namespace spikeforge {

// Returns an empty string if the variable is not set or empty.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Returns std::nullopt unless the variable is an integer from 0 to 2^64 - 1.
inline std::optional<std::uint64_t> whole_number_in_environment(const char* name) {
  const std::string text = environment(name);
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace spikeforge
