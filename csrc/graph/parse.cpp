#include "csrc/graph/internal/lexer.h"
#include "csrc/graph/internal/number_text.h"
#include "csrc/graph/internal/parser.h"
#include "csrc/graph/text.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>

namespace spikeforge::graph {
namespace {

std::optional<double> special_number(std::string_view word) {
  if (word == "inf") return std::numeric_limits<double>::infinity();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

class NeuronParser : Parser {
 public:
  using Parser::Parser;

  Cell neuron();

 private:
  Signature signature();
  void declare_arguments();
  void statement();
  void next_state(const Token& name);
  void outputs(const Token& keyword);

  std::optional<Cell> cell_;
  std::vector<Id> outputs_;
  std::vector<std::optional<Id>> next_states_;
};

Cell NeuronParser::neuron() {
  skip_line_breaks();
  const Token keyword = token_;
  expect("neuron", "at the beginning");
  cell_ = at(keyword, [&] { return Cell(signature()); });
  graph_ = &cell_->graph();
  declare_arguments();
  next_states_.resize(cell_->state_count());

  skip_line_breaks();
  expect("{", "before the equations");
  const Token end = statements([&] { statement(); });
  end_of_text("neuron");

  if (outputs_.empty()) fail(end, "the neuron returns nothing: write return and its outputs");
  std::vector<Id> next;
  for (std::size_t i = 0; i < next_states_.size(); ++i) {
    const std::string& state = cell_->signature().states[i].name;
    if (!next_states_[i]) fail(end, fmt::format("state {0} has no next value: write {0}' = ...", state));
    next.push_back(*next_states_[i]);
  }
  at(end, [&] { cell_->finish(outputs_, next); });
  return std::move(*cell_);
}

Signature NeuronParser::signature() {
  Signature signature;
  std::set<std::string_view> seen;
  const std::string bound =
      fmt::format("a neuron has at most {} inputs, states and parameters together", most_arguments);
  signature.name = std::string(expect_name("the neuron's name").text);
  expect("(", "after the neuron's name");
  names("an input's name", bound, seen, [&](const Token& name) { signature.inputs.emplace_back(name.text); });
  if (take_if(";"))
    names("a state's name", bound, seen, [&](const Token& name) {
      signature.states.emplace_back(std::string(name.text));
      if (take_if("=")) signature.states.back().initial = constant();
    });
  if (take_if(";"))
    names("a parameter's name", bound, seen, [&](const Token& name) { signature.params.emplace_back(name.text); });
  expect(")", "or \",\" or \";\" after the arguments");
  return signature;
}

// Declares the arguments by the strings of the signature, whose addresses stay valid while the graph grows.
void NeuronParser::declare_arguments() {
  const Signature& s = cell_->signature();
  for (const std::string& input : s.inputs) scope_.emplace(input, scope_.size());
  for (const State& state : s.states) scope_.emplace(state.name, scope_.size());
  for (const std::string& param : s.params) scope_.emplace(param, scope_.size());
}

void NeuronParser::statement() {
  if (sees("return")) return outputs(take());
  const Token name = expect_name("a statement: name = ..., state' = ... or return ...");
  if (take_if("'")) return next_state(name);
  assignment(name);
}

void NeuronParser::next_state(const Token& name) {
  for (std::size_t i = 0; i < next_states_.size(); ++i) {
    if (cell_->signature().states[i].name != name.text) continue;
    if (next_states_[i]) fail(name, fmt::format("{}' has a value already", name.text));
    expect("=", "after the state");
    next_states_[i] = expression();
    return;
  }
  fail(name, fmt::format("{} is not a state and has no next value", quoted(name)));
}

void NeuronParser::outputs(const Token& keyword) {
  if (!outputs_.empty()) fail(keyword, "a neuron has one return statement: return a, b has two outputs");
  do outputs_.push_back(expression());
  while (take_if(","));
}

}  // namespace

std::string quoted(const Token& token) {
  switch (token.kind) {
    case Token::Kind::line_break: return "the end of the line";
    case Token::Kind::end: return "the end of the text";
    default: return fmt::format("\"{}\"", token.text.substr(0, most_name_length));
  }
}

void Parser::assignment(const Token& name) {
  if (!sees("=") && !advice_about(name.text).empty())
    fail(name, fmt::format("no statement begins with {}{}", quoted(name), advice_about(name.text)));
  if (scope_.contains(name.text)) fail(name, fmt::format("{} already has a value; use another name", quoted(name)));
  if (!is_name(name.text)) fail(name, fmt::format("a name has at most {} characters", most_name_length));
  expect("=", "after the name");
  const Id value = expression();
  graph().set_name(value, name.text);
  scope_.emplace(name.text, value);
}

// Parses an expression of operators with at least this precedence. A long sum is parsed by a loop, not by recursion.
Id Parser::binary(int precedence) {
  Id left = prefixed();
  for (bool compared = false;;) {
    const bool may_be_infix = token_.kind == Token::Kind::symbol || token_.kind == Token::Kind::name;
    const std::optional<Op> op = may_be_infix ? find_infix(token_.text) : std::nullopt;
    if (!op || info(*op).precedence < precedence) return left;
    const bool compares = info(*op).result != info(*op).operands[0];
    if (compares && compared) fail(token_, "comparisons do not chain: write a < b and b < c");
    compared = compares;
    const Token symbol = take();
    const Id right = binary(info(*op).precedence + 1);
    left = make(symbol, *op, std::array{left, right});
  }
}

Id Parser::prefixed() {
  if (++nesting_ > most_nesting)
    fail(token_, fmt::format("more than {} nested expressions: assign a part of it to a name", most_nesting));
  const auto prefix = [&]() -> Id {
    const Token symbol = token_;
    if (take_if("-")) return negated(symbol);
    if (take_if("not")) return make(symbol, Op::logical_not, std::array{prefixed()});
    return primary();
  };
  const Id value = prefix();
  --nesting_;
  return value;
}

// Parses the operand of a minus. -2 is a single constant, not the negation of 2.
Id Parser::negated(const Token& minus) {
  const bool is_number = token_.kind == Token::Kind::number || sees("inf") || sees("nan");
  if (is_number) return at(minus, [&] { return graph().constant(-constant()); });
  return make(minus, Op::neg, std::array{prefixed()});
}

Id Parser::primary() {
  if (take_if("(")) {
    const Id value = expression();
    expect(")", "to close the parenthesis");
    return value;
  }
  if (token_.kind == Token::Kind::number) {
    const Token token = take();
    return at(token, [&] { return graph().constant(number(token)); });
  }
  if (token_.kind == Token::Kind::name) {
    const Token word = take();
    if (sees("(") && !is_reserved(word.text)) return call(word);
    return named(word);
  }
  const bool is_power = last_.text == "*" && sees("*");
  fail(token_, fmt::format("expected an expression, but found {}{}", quoted(token_),
                           advice_about(is_power ? "**" : token_.text)));
}

Id Parser::named(const Token& name) {
  if (const auto number = special_number(name.text)) return at(name, [&] { return graph().constant(*number); });
  if (name.text == "true" || name.text == "false") return at(name, [&] { return graph().truth(name.text == "true"); });
  if (is_reserved(name.text)) fail(name, fmt::format("expected an expression, but found {}", quoted(name)));
  const auto known = scope_.find(name.text);
  if (known == scope_.end()) {
    fail(name, find_call(name.text)
                   ? fmt::format("{} is a function: write {}(...)", quoted(name), name.text)
                   : fmt::format("nothing above is called {}{}", quoted(name), advice_about(name.text)));
  }
  return known->second;
}

std::vector<Id> Parser::operands() {
  std::vector<Id> list;
  if (sees(")")) return list;
  do {
    // Rejects a list longer than the largest graph before it uses more memory.
    list.push_back(expression());
    if (list.size() > most_nodes) fail(last_, "too many operands");
  } while (take_if(","));
  return list;
}

// Parses draw(law, number), or draw_once(law) with or without a number.
Id Parser::draw(const Token& function) {
  expect("(", "after the function");
  const Token name = expect_name("a draw, such as normal()");
  const std::optional<Op> law = find_call(name.text);
  if (!law || !is_draw(*law))
    fail(name,
         fmt::format("{} takes a draw itself, such as bernoulli(0.5), but found {}", function.text, quoted(name)));
  expect("(", "after the draw");
  const std::vector<Id> list = operands();
  expect(")", fmt::format("or \",\" after the operands of {}", name.text));
  Draw which{.number = graph().next_draw(), .once = function.text == "draw_once"};
  if (!which.once || sees(",")) {
    expect(",", "and the draw's number");
    const Token token = token_;
    const double given = constant();
    if (!(given >= 0 && given < most_draws && std::trunc(given) == given))
      fail(token, fmt::format("the number of a draw is a whole one below {}", most_draws));
    which.number = static_cast<std::uint32_t>(given);
  }
  expect(")", fmt::format("to end {}", function.text));
  return at(name, [&] { return graph().draw(*law, list, which); });
}

Id Parser::call(const Token& function) {
  if (function.text == "draw" || function.text == "draw_once") return draw(function);
  const std::optional<Op> op = find_call(function.text);
  const bool is_custom_gradient = function.text == "custom_gradient";
  if (!op && !is_custom_gradient)
    fail(function, fmt::format("no function is called {}{}", quoted(function), advice_about(function.text)));
  expect("(", "after the function");
  std::vector<Id> list;
  Surrogate beside;
  if (op && info(*op).form == Form::spike) {
    list.push_back(expression());
    expect(",", "and a surrogate, such as atan(2)");
    beside = surrogate();
  } else {
    list = operands();
  }
  expect(")", fmt::format("or \",\" after the operands of {}", function.text));
  if (is_custom_gradient) return custom_gradient(function, list);
  const OpInfo& known = info(*op);
  if (known.form == Form::draw && list.size() > static_cast<std::size_t>(known.arity))
    fail(function, fmt::format("{0} takes {1} operand{2}, but {3} are given; write mean + deviation * normal(), or "
                               "low + (high - low) * uniform()",
                               function.text, known.arity, known.arity == 1 ? "" : "s", list.size()));
  if (known.last_default && list.size() + 1 == static_cast<std::size_t>(known.arity))
    list.push_back(at(function, [&] { return graph().constant(*known.last_default); }));
  return make(function, *op, list, beside);
}

Id Parser::custom_gradient(const Token& function, std::span<const Id> list) {
  if (list.size() % 2 == 0)
    fail(function, "custom_gradient takes a value, and then pairs: a variable, and the derivative by it");
  Id value = make(function, Op::detach, list.first(1));
  for (std::size_t i = 1; i < list.size(); i += 2)
    value = make(function, Op::add_gradient, std::array{value, list[i], list[i + 1]});
  return value;
}

Surrogate Parser::surrogate() {
  const Token name = expect_name("a surrogate, such as atan(2)");
  std::vector<double> numbers;
  if (take_if("(")) {
    if (!sees(")")) {
      do numbers.push_back(constant());
      while (numbers.size() < most_nodes && take_if(","));
    }
    expect(")", "after the surrogate's numbers");
  }
  return at(name, [&] { return make_surrogate(name.text, numbers); });
}

double Parser::constant() {
  const double sign = take_if("-") ? -1 : 1;
  if (token_.kind == Token::Kind::number) return sign * number(take());
  const auto special = token_.kind == Token::Kind::name ? special_number(token_.text) : std::nullopt;
  if (!special) fail(token_, fmt::format("expected a number, but found {}", quoted(token_)));
  take();
  return sign * *special;
}

double Parser::number(const Token& token) const {
  const std::optional<double> value = number_of(token.text);
  if (!value) fail(token, fmt::format("{} is not a number, or does not fit double precision", quoted(token)));
  return *value;
}

Cell parse(std::string_view text) {
  if (text.size() > most_text)
    throw TextError(fmt::format("a neuron text has at most {} bytes, and this one has more", most_text), 1, 1);
  return NeuronParser(text).neuron();
}

}  // namespace spikeforge::graph
