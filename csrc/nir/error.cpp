#include "csrc/nir/error.h"
#include "csrc/base/printable.h"

#include <fmt/format.h>

namespace spikeforge::nir {
namespace {

constexpr std::size_t most_shown = 200;  // bytes of a name, so that messages stay readable

std::string message(const std::string& file, const std::string& node, const std::string& field,
                    const std::string& reason) {
  std::string text;
  if (!file.empty()) text += printable(file) + ": ";
  if (!node.empty()) text += "node " + printable(node);
  if (!field.empty()) text += (node.empty() ? "field " : ", field ") + printable(field);
  if (!node.empty() || !field.empty()) text += ": ";
  return text + spikeforge::printable(reason);
}

}  // namespace

Error::Error(std::string file, std::string node, std::string field, std::string reason)
    : std::runtime_error(message(file, node, field, reason)),
      file(std::move(file)),
      node(std::move(node)),
      field(std::move(field)),
      reason(std::move(reason)) {}

std::size_t character_length(std::string_view text) { return spikeforge::character_length(text); }

std::string printable(std::string_view text) { return spikeforge::printable(text, Lines::one, most_shown); }

std::string in_node(std::string_view graph, std::string_view name) {
  if (graph.empty() || graph == "/") return std::string(name);
  return fmt::format("{}/{}", graph, name);
}

}  // namespace spikeforge::nir
