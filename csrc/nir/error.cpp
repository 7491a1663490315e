#include <spikeforge/nir/error.h>

#include <fmt/format.h>

#include <cstdint>

namespace spikeforge::nir {
namespace {

constexpr std::size_t most_shown = 200;  // bytes of a name; a message stays readable

std::string message(const std::string& file, const std::string& node, const std::string& field,
                    const std::string& reason) {
  std::string text;
  if (!file.empty()) text += printable(file) + ": ";
  if (!node.empty()) text += "node " + printable(node);
  if (!field.empty()) text += (node.empty() ? "field " : ", field ") + printable(field);
  if (!node.empty() || !field.empty()) text += ": ";
  return text + reason;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;  // those of Latin-1
}

}  // namespace

Error::Error(std::string file, std::string node, std::string field, std::string reason)
    : std::runtime_error(message(file, node, field, reason)),
      file(std::move(file)),
      node(std::move(node)),
      field(std::move(field)),
      reason(std::move(reason)) {}

std::size_t character_length(std::string_view text) {
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
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // shorter ones are written shorter
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return code >= least[length] && code <= 0x10ffff && !is_surrogate ? length : 0;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= most_shown) return shown + "...";
    std::size_t length = character_length(text);
    if (length == 0 || is_control(text.substr(0, length))) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      length = 1;
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return shown;
}

std::string in_node(std::string_view graph, std::string_view name) {
  if (graph.empty() || graph == "/") return std::string(name);
  return fmt::format("{}/{}", graph, name);
}

}  // namespace spikeforge::nir
