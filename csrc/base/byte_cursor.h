// Reads little-endian numbers and text from the bytes of a file, in place, and nothing beyond them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spikeforge {

// `cut_short` throws what the file's reader throws.
template <void (*cut_short)()>
class ByteCursor {
 public:
  explicit ByteCursor(std::string_view bytes, std::size_t at = 0) : bytes_(bytes.substr(std::min(at, bytes.size()))) {}

  std::uint64_t number(std::size_t length) {
    const std::string_view digits = text(length);
    std::uint64_t value = 0;
    for (std::size_t i = length; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  std::string_view text(std::size_t length) {
    if (length > bytes_.size()) cut_short();
    const std::string_view front = bytes_.substr(0, length);
    bytes_.remove_prefix(length);
    return front;
  }
  // Returns the line without its end, and skips the end.
  std::string_view line() {
    const std::string_view all = text(std::min(bytes_.find('\n'), bytes_.size()));
    text(1);
    return all;
  }
  // Skips the mark if it comes next.
  bool takes(std::string_view mark) {
    if (!bytes_.starts_with(mark)) return false;
    bytes_.remove_prefix(mark.size());
    return true;
  }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

}  // namespace spikeforge
