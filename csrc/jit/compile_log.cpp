#include "csrc/jit/compile_log.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace spikeforge::jit {
namespace {

constexpr int lines_around = 4;
constexpr std::size_t most_excerpts = 3;  // later errors mostly follow from the first

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Returns the number directly before `words`, as in "0 bytes spill stores".
int number_before(std::string_view line, std::string_view words) {
  const std::size_t end = line.find(words);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

struct Location {
  std::string_view file;
  int line;
  auto operator<=>(const Location&) const = default;
};

// NVRTC writes `lif_forward.cu(12): error: ...`, and `catastrophic error` for a header that is not there.
std::optional<Location> location_of_error(std::string_view line) {
  const std::size_t close = line.find("): ");
  if (close == std::string_view::npos) return {};
  const std::string_view message = line.substr(close + 3);
  if (!message.starts_with("error") && !message.starts_with("catastrophic error")) return {};
  const std::size_t open = line.rfind('(', close);
  if (open == std::string_view::npos) return {};
  Location location{line.substr(0, open), 0};
  std::from_chars(line.data() + open + 1, line.data() + close, location.line);
  return location;
}

std::string excerpt(const Location& at, std::string_view text) {
  const std::vector<std::string_view> lines = split_lines(text);
  const int first = std::max(1, at.line - lines_around);
  const int last = std::min(static_cast<int>(lines.size()), at.line + lines_around);
  std::string out = fmt::format("{}, line {}:\n", at.file, at.line);
  for (int number = first; number <= last; ++number)
    out += fmt::format("{} {:4} | {}\n", number == at.line ? '>' : ' ', number, lines[number - 1]);
  return out;
}

}  // namespace

std::optional<ResourceUsage> parse_resource_usage(std::string_view log) {
  ResourceUsage most;
  bool found = false;
  for (const std::string_view line : split_lines(log)) {
    const int spilled = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    most.registers = std::max(most.registers, number_before(line, " registers"));
    most.spill_bytes = std::max(most.spill_bytes, spilled);
    most.stack_bytes = std::max(most.stack_bytes, number_before(line, " bytes stack frame"));
    found = found || line.find("spill stores") != std::string_view::npos;
  }
  return found ? std::optional(most) : std::nullopt;
}

std::string excerpt_of_errors(std::string_view log, std::span<const EmbeddedHeader> files) {
  std::string out;
  std::set<Location> shown;
  for (const std::string_view line : split_lines(log)) {
    const std::optional<Location> at = location_of_error(line);
    if (!at || shown.size() == most_excerpts || !shown.insert(*at).second) continue;
    const auto file = std::ranges::find_if(files, [&](const EmbeddedHeader& each) { return at->file == each.name; });
    if (file != files.end()) out += excerpt(*at, file->text);
  }
  return out;
}

std::string installation_hint(std::string_view log) {
  if (log.find("libnvrtc-builtins") == std::string_view::npos) return "";
  return "NVRTC lacks its second library, libnvrtc-builtins, which must be in the folder of libnvrtc and have the "
         "same "
         "version. Reinstall NVRTC (pip install --force-reinstall nvidia-cuda-nvrtc), or let SPIKEFORGE_NVRTC name "
         "a "
         "libnvrtc that has it.\n";
}

}  // namespace spikeforge::jit
