// Neuron text as tokens.
#pragma once

#include "csrc/graph/errors.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace spikeforge::graph {

// In ASCII, whatever the locale.
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Token {
  enum class Kind : std::uint8_t { name, number, symbol, line_break, end };

  Kind kind = Kind::end;
  std::string_view text;  // in the text that was given
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  // Throws TextError for a character that no token begins with.
  Token next();

  // An error that points at the token.
  TextError error(const Token& at, const std::string& message) const;

 private:
  void skip_blanks();
  std::size_t length_of_word() const;
  std::size_t length_of_number() const;

  std::string_view text_;
  std::size_t at_ = 0;
  int parentheses_ = 0;  // open ones: within them a line break is a blank
};

// About a name or a symbol that neuron text does not have, to follow an error: "; write where(...) ..."; empty:
// nothing.
std::string_view advice_about(std::string_view word);

}  // namespace spikeforge::graph
