// The parser of neuron text, and the part that it shares with the parser of synapses: tokens, statements and
// expressions.
#pragma once

#include "csrc/graph/cell.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/lexer.h"
#include "csrc/graph/surrogate.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace spikeforge::graph {

// Returns the token as error messages show it.
std::string quoted(const Token& token);

// One function per rule of the grammar in text.h. Expressions become nodes of one graph at a time.
class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text), token_(lexer_.next()) {}

 protected:
  using Scope = std::unordered_map<std::string_view, Id>;

  // Tokens.
  bool sees(std::string_view text) const {
    return (token_.kind == Token::Kind::symbol || token_.kind == Token::Kind::name) && token_.text == text;
  }
  Token take() {
    last_ = token_;
    token_ = lexer_.next();
    return last_;
  }
  bool take_if(std::string_view text) {
    if (!sees(text)) return false;
    take();
    return true;
  }
  void expect(std::string_view text, std::string_view where) {
    if (!take_if(text)) fail(token_, fmt::format("expected \"{}\" {}, but found {}", text, where, quoted(token_)));
  }
  Token expect_name(std::string_view what) {
    if (token_.kind != Token::Kind::name || is_reserved(token_.text))
      fail(token_, fmt::format("expected {}, but found {}", what, quoted(token_)));
    return take();
  }
  void skip_line_breaks() {
    while (token_.kind == Token::Kind::line_break) take();
  }
  [[noreturn]] void fail(const Token& at, const std::string& message) const { throw lexer_.error(at, message); }
  // Calls the function. A GraphError becomes a TextError at this token.
  template <class Function> auto at(const Token& place, Function&& function) const {
    try {
      return function();
    } catch (const TextError&) {
      throw;
    } catch (const GraphError& error) {
      fail(place, error.what());
    }
  }

  // Parses a list of names in a header, up to ";" or ")". add(name) processes each name, and parses the text after it.
  // `seen` has the names of all lists; `bound` is the error message if there are too many.
  template <class Add>
  void names(std::string_view what, std::string_view bound, std::set<std::string_view>& seen, Add&& add) {
    if (sees(";") || sees(")")) return;
    do {
      const Token name = expect_name(what);
      if (!seen.insert(name.text).second) fail(name, fmt::format("two arguments are called {}", quoted(name)));
      if (seen.size() > most_arguments) fail(name, std::string(bound));
      if (!is_name(name.text)) fail(name, fmt::format("a name has at most {} characters", most_name_length));
      add(name);
    } while (take_if(","));
  }

  // Parses statements up to a closing brace, after the opening one; statement() parses one statement. Returns the
  // closing brace.
  template <class Statement> Token statements(Statement&& statement) {
    while (!sees("}")) {
      if (token_.kind == Token::Kind::line_break || sees(";")) {
        take();
        continue;
      }
      bool is_closed = false;  // by a brace: the next statement then needs no separator
      if constexpr (std::is_same_v<decltype(statement()), bool>)
        is_closed = statement();
      else
        statement();
      if (!is_closed && !sees(";") && !sees("}") && token_.kind != Token::Kind::line_break)
        fail(token_, fmt::format("expected an operator or the end of the statement, but found {}{}", quoted(token_),
                                 advice_about(token_.text)));
    }
    return take();
  }
  void end_of_text(std::string_view what) {
    skip_line_breaks();
    if (token_.kind != Token::Kind::end)
      fail(token_, fmt::format("expected nothing after the {}, but found {}", what, quoted(token_)));
  }
  // Parses "= expression" of an assignment, after its name.
  void assignment(const Token& name);

  // Expressions.
  Id expression() { return binary(1); }
  Id binary(int precedence);
  Id prefixed();
  Id negated(const Token& minus);
  Id primary();
  Id named(const Token& name);
  Id call(const Token& function);
  Id draw(const Token& function);
  Id custom_gradient(const Token& function, std::span<const Id> operands);
  std::vector<Id> operands();
  Surrogate surrogate();
  double constant();
  double number(const Token& token) const;

  Id make(const Token& place, Op op, std::span<const Id> operands, const Surrogate& surrogate = {}) {
    return at(place, [&] { return graph().make(op, operands, surrogate); });
  }
  Graph& graph() { return *graph_; }

  Lexer lexer_;
  Token token_;  // the next token
  Token last_;
  int nesting_ = 0;
  Graph* graph_ = nullptr;  // the graph to which expressions are added
  Scope scope_;             // the names of its nodes
};

}  // namespace spikeforge::graph
