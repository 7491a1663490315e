// Double precision numbers as text, and back, without loss.
#pragma once

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace spikeforge::graph {

// The shortest text that reads back as the same number; inf, -inf, nan, -0.
inline std::string text_of(double number) {
  if (std::isnan(number)) return "nan";  // whatever its sign
  char buffer[32];
  const auto [end, error] = std::to_chars(std::begin(buffer), std::end(buffer), number);
  return {buffer, end};
}

// Digits with an optional fraction and exponent, no sign; nothing if it is none, or does not fit a double.
inline std::optional<double> number_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace spikeforge::graph
