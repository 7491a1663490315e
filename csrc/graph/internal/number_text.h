// Double precision numbers as text, and back, without loss.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spikeforge::graph {

// The shortest text that reads back as the same number; inf, -inf, nan, -0.
std::string text_of(double number);

// Digits with an optional fraction and exponent, no sign; nothing if it is none, or does not fit a double.
std::optional<double> number_of(std::string_view text);

}  // namespace spikeforge::graph
