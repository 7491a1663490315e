// Conversion of double-precision numbers to text and back, without loss.
#pragma once

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace spikeforge::graph {

// Returns the shortest text that parses to the same number; inf, -inf, nan, -0.
inline std::string text_of(double number) {
  if (std::isnan(number)) return "nan";  // regardless of its sign
  char buffer[32];
  const auto [end, error] = std::to_chars(std::begin(buffer), std::end(buffer), number);
  return {buffer, end};
}

// Parses digits with an optional fraction and exponent, without a sign. Returns std::nullopt for other text, and for a
// number that does not fit a double.
inline std::optional<double> number_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace spikeforge::graph
