// Converts untrusted text to a form that is safe on a terminal: control characters, which move cursors and change
// titles, and bytes that are not UTF-8 are written as \xNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace spikeforge {

// Returns the number of bytes of the UTF-8 character at the start of a text; 0 if there is none. The text must not be
// empty.
inline std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80         ? 1
                             : byte(0) >> 5 == 0x6  ? 2
                             : byte(0) >> 4 == 0xe  ? 3
                             : byte(0) >> 3 == 0x1e ? 4
                                                    : 0;
  if (length == 0 || length > text.size()) return 0;
  if (length == 1) return 1;
  std::uint32_t code = byte(0) & (0x7f >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // the smallest character of each length
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return code >= least[length] && code <= 0x10ffff && !is_surrogate ? length : 0;
}

enum class Lines { one, several };  // several: keeps line breaks and tabs

inline bool is_control(std::string_view character, Lines lines) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (lines == Lines::several && (first == '\n' || first == '\t')) return false;
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;  // control characters of Latin-1
}

// Returns the printable text. If it is longer than about `most` bytes, it is cut and ends with "...".
inline std::string printable(std::string_view text, Lines lines = Lines::one, std::size_t most = std::string::npos) {
  constexpr char digits[] = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= most) return shown + "...";
    std::size_t length = character_length(text);
    if (length == 0 || is_control(text.substr(0, length), lines)) {
      const auto byte = static_cast<unsigned char>(text[0]);
      shown += {'\\', 'x', digits[byte / 16], digits[byte % 16]};
      length = 1;
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return shown;
}

}  // namespace spikeforge
