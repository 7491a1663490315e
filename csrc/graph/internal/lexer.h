// Neuron text as tokens.
#pragma once

#include "csrc/graph/errors.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace spikeforge::graph {

// True for an ASCII letter or _, independent of the locale.
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Token {
  enum class Kind : std::uint8_t { name, number, symbol, line_break, end };

  Kind kind = Kind::end;
  std::string_view text;  // a part of the given text
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  // Returns the next token. Throws TextError at a character that starts no token.
  Token next();

  // Returns an error that points at the token.
  TextError error(const Token& at, const std::string& message) const;

 private:
  void skip_blanks();
  std::size_t length_of_word() const;
  std::size_t length_of_number() const;

  std::string_view text_;
  std::size_t at_ = 0;
  int parentheses_ = 0;  // the number of open ones; within them, a line break is a blank
};

// Returns advice about a name or a symbol that neuron text does not have, to be appended to an error message: "; write
// where(...) ...". Empty if there is no advice.
std::string_view advice_about(std::string_view word);

}  // namespace spikeforge::graph
