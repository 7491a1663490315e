#include "tools/nir/text.h"

#include "csrc/base/printable.h"
#include "csrc/nir/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace spikeforge::nir {

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  while (!text.empty()) {
    std::size_t length = character_length(text);
    if (length == 0) {
      result += "\\ufffd";
      length = 1;
    } else if (text[0] == '"' || text[0] == '\\') {
      result += {'\\', text[0]};
    } else if (spikeforge::is_control(text.substr(0, 1), Lines::one)) {
      result += fmt::format("\\u{:04x}", static_cast<int>(text[0]));
    } else if (length == 2 && spikeforge::is_control(text.substr(0, 2), Lines::one)) {
      result += fmt::format("\\u00{:02x}", static_cast<int>(static_cast<unsigned char>(text[1])));
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result + '"';
}

std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return fmt::format("{}", value);
}

std::string json_shape(const Shape& shape) { return text_of(shape); }

std::string text_of_range(const Array& array) {
  if (array.count() == 0) return "empty";
  const Range range = range_of(array);
  std::string text = range.least == range.greatest ? fmt::format("{:.6g}", range.least)
                                                   : fmt::format("{:.6g} to {:.6g}", range.least, range.greatest);
  if (range.has_nan) text += " and NaN";
  return text;
}

std::string text_of_setting(const Shape& value) { return text_of(value); }
std::string text_of_setting(std::int64_t value) { return fmt::format("{}", value); }

}  // namespace spikeforge::nir
