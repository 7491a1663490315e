#include "csrc/graph/internal/number_text.h"

#include <charconv>
#include <cmath>

namespace spikeforge::graph {

std::string text_of(double number) {
  if (std::isnan(number)) return "nan";  // whatever its sign
  char buffer[32];
  const auto [end, error] = std::to_chars(std::begin(buffer), std::end(buffer), number);
  return {buffer, end};
}

std::optional<double> number_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace spikeforge::graph
