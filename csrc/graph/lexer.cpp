#include "csrc/graph/internal/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace spikeforge::graph {
namespace {

constexpr std::string_view symbols[] = {"<=", ">=", "==", "!=", "<", ">", "+", "-", "*",
                                        "/",  "=",  "(",  ")",  "{", "}", ",", ";", "'"};
constexpr std::size_t longest_excerpt = 120;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_printable(char c) { return c >= ' ' && c <= '~'; }

struct Advice {
  std::string_view text;
  std::string_view words;  // separated by blanks
};

constexpr Advice all_advice[] = {
    {"; write where(condition, a, b) for a choice", " if else elif then ? "},
    {"; the text is one step, which the operator repeats over time: it has no loops", " for while "},
    {"; write normal(), uniform(), bernoulli(p) or poisson(rate) for a random number",
     " randn rand randint random randn_like rand_like gauss "},
    {"; write x * draw_once(bernoulli(keep)) / keep for dropout with one mask in all steps", " dropout "},
    {"; a neuron computes element by element: compute the product outside, and pass it as an input",
     " @ matmul mm bmm dot einsum linear conv conv1d conv2d conv3d "},
    {"; a neuron computes element by element and cannot read others: reduce outside, and pass the result as an input",
     " sum mean std var prod cumsum softmax norm amax amin "},
    {"; a neuron reads one element of each argument: pass the indexed values as a separate input", " [ ] "},
    {"; write pow(a, b) for a power", " ** ^ power "},
    {"; write remainder(a, b), or fmod(a, b)", " % mod "},
    {"; write and", " & && logical_and "},
    {"; write or", " | || logical_or "},
    {"; write not", " ! ~ logical_not "},
    {"; write maximum(a, b) or minimum(a, b)", " max min fmax fmin "},
    {"; write spike(x, atan(2)), whose last word is a surrogate", " heaviside "},
};

}  // namespace

void Lexer::skip_blanks() {
  for (; at_ < text_.size(); ++at_) {
    if (text_[at_] == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      if (at_ == text_.size()) return;
    }
    if (!is_blank(text_[at_]) && !(text_[at_] == '\n' && parentheses_ > 0)) return;
  }
}

std::size_t Lexer::length_of_word() const {
  std::size_t end = at_;
  while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
  return end - at_;
}

// Returns the length of digits, a point, digits, and an exponent. Letters that follow are included, so that 2x is
// rejected as a whole.
std::size_t Lexer::length_of_number() const {
  std::size_t end = at_;
  for (; end < text_.size(); ++end) {
    const char c = text_[end], before = end > at_ ? text_[end - 1] : '0';
    const bool signs_exponent = (c == '+' || c == '-') && (before == 'e' || before == 'E');
    if (!is_digit(c) && !is_letter(c) && c != '.' && !signs_exponent) break;
  }
  return end - at_;
}

Token Lexer::next() {
  skip_blanks();
  const std::string_view rest = text_.substr(at_);
  if (rest.empty()) return {Token::Kind::end, rest};
  const auto take = [&](Token::Kind kind, std::size_t length) {
    at_ += length;
    return Token{kind, rest.substr(0, length)};
  };
  if (rest[0] == '\n') return take(Token::Kind::line_break, 1);
  if (is_letter(rest[0])) return take(Token::Kind::name, length_of_word());
  if (is_digit(rest[0]) || (rest[0] == '.' && rest.size() > 1 && is_digit(rest[1])))
    return take(Token::Kind::number, length_of_number());
  for (const std::string_view symbol : symbols) {
    if (!rest.starts_with(symbol)) continue;
    if (symbol == "(") ++parentheses_;
    if (symbol == ")") --parentheses_;
    return take(Token::Kind::symbol, symbol.size());
  }
  const std::string shown = is_printable(rest[0]) ? fmt::format("'{}'", rest[0])
                                                  : fmt::format("byte {:#04x}", static_cast<unsigned char>(rest[0]));
  throw error({Token::Kind::end, rest.substr(0, 1)},
              fmt::format("{} has no meaning here{}", shown, advice_about(rest.substr(0, 1))));
}

TextError Lexer::error(const Token& at, const std::string& message) const {
  const auto offset = static_cast<std::size_t>(at.text.data() - text_.data());
  const std::string_view before = text_.substr(0, offset);
  const auto line = std::ranges::count(before, '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  const std::size_t column = offset - line_start;
  const std::size_t cut = column > longest_excerpt / 2 ? column - longest_excerpt / 2 : 0;

  std::string excerpt(text_.substr(line_start + cut, longest_excerpt));
  excerpt.resize(std::min(excerpt.find('\n'), excerpt.size()));
  // Replaces control characters, which a terminal would execute.
  std::ranges::replace_if(
      excerpt, [](char c) { return !is_printable(c); }, ' ');
  return {fmt::format("line {}, column {}: {}\n  {}\n  {}^", line + 1, column + 1, message, excerpt,
                      std::string(column - cut, ' ')),
          static_cast<int>(line + 1), static_cast<int>(column + 1)};
}

std::string_view advice_about(std::string_view word) {
  for (const Advice& advice : all_advice)
    for (std::size_t at = advice.words.find(word); at != std::string_view::npos; at = advice.words.find(word, at + 1))
      if (!word.empty() && advice.words[at - 1] == ' ' && advice.words[at + word.size()] == ' ') return advice.text;
  return "";
}

}  // namespace spikeforge::graph
