#include <spikeforge/nir/error.h>

#include <fmt/format.h>

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

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Bytes of the UTF-8 sequence that the text begins with; 0 where it begins with none. Overlong forms pass: they are
// shown, not compared.
std::size_t sequence_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (!is_continuation(text[i])) return 0;
  // The control characters of Latin-1.
  if (length == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0) return 0;
  return length;
}

}  // namespace

Error::Error(std::string file, std::string node, std::string field, std::string reason)
    : std::runtime_error(message(file, node, field, reason)),
      file(std::move(file)),
      node(std::move(node)),
      field(std::move(field)),
      reason(std::move(reason)) {}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= most_shown) return shown + "...";
    const std::size_t length = sequence_length(text);
    const bool is_control = static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f;
    if (length == 0 || is_control) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return shown;
}

std::string in_node(std::string_view graph, std::string_view name) {
  if (graph.empty() || graph == "/") return std::string(name);
  return fmt::format("{}/{}", graph, name);
}

}  // namespace spikeforge::nir
