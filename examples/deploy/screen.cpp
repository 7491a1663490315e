#include "screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "error.h"

namespace {

constexpr std::size_t source_limit = 64 << 20;
constexpr std::string_view libraries[] = {"aten", "prim", "spikeforge"};
constexpr std::string_view of_files[] = {"save", "from_file"};

template <std::size_t N>
bool is_one_of(std::string_view word, const std::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Words and signs; of a string nothing but the quotation mark, of a comment nothing.
std::vector<std::string> tokens_of(const std::string& source) {
  std::vector<std::string> tokens;
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = 0; at < source.size();) {
    const char c = source[at];
    if (is_letter(c)) {
      const std::size_t start = at;
      while (at < source.size() && is_letter(source[at])) ++at;
      tokens.push_back(source.substr(start, at - start));
    } else if (c == '"' || c == '\'') {
      const std::string mark = source.compare(at, 3, std::string(3, c)) == 0 ? std::string(3, c) : std::string(1, c);
      at += mark.size();
      while (at < source.size() && source.compare(at, mark.size(), mark) != 0) at += source[at] == '\\' ? 2 : 1;
      at = std::min(at + mark.size(), source.size());
      tokens.emplace_back("\"");
    } else if (c == '#') {
      while (at < source.size() && source[at] != '\n') ++at;
    } else {
      const bool is_space = std::isspace(static_cast<unsigned char>(c)) || c == '\\';  // it continues a line
      if (!is_space) tokens.emplace_back(1, c);
      ++at;
    }
  }
  return tokens;
}

void screen_source(const std::string& path, const std::vector<std::string>& tokens) {
  const auto token = [&](std::size_t i) { return i < tokens.size() ? std::string_view(tokens[i]) : ""; };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool is_member = i > 0 && token(i - 1) == ".";
    if (is_member && is_one_of(token(i), of_files))
      throw UserError(fmt::format("{}: it calls {}, which reads or writes files", path, token(i)));
    if (is_member || token(i) != "ops") continue;
    if (token(i + 1) != "." || !is_one_of(token(i + 2), libraries))
      throw UserError(fmt::format("{}: it calls {}::{}, which is neither of torch nor of spikeforge", path,
                                  token(i + 2), token(i + 4)));
  }
}

}  // namespace

void screen(const std::string& path, const Archive& archive) {
  for (const Entry& entry : archive.entries())
    if (entry.name.ends_with(".py")) screen_source(path, tokens_of(archive.read(entry, source_limit)));
}
