#pragma once
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>

namespace spikeforge {

// Empty where the variable is not set: nothing here tells the two apart.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Nothing where the variable is not a whole number from 0 on, or too large for one.
inline std::optional<std::uint64_t> whole_number_in_environment(const char* name) {
  const std::string text = environment(name);
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace spikeforge
