#include "csrc/graph/errors.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <string>

namespace spikeforge::graph {
namespace {

using test::has_text;

std::string error_of(std::string_view text) {
  return test::message_of<TextError>([&] { parse(text); });
}

// Within "neuron n(x; v; p) { return x; v' = v; ... }"; the message without its position.
std::string error_in(const std::string& statement) {
  const std::string all = error_of("neuron n(x; v; p) {\nreturn x; v' = v\n" + statement + "\n}");
  const std::size_t begin = all.find(": "), end = all.find('\n');
  return begin < end ? all.substr(begin + 2, end - begin - 2) : all;
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("an error shows where it is: line, column, the line itself and a caret") {
  const std::string text = "neuron n(x; v) {\n  h = v +\thh * 2  # here\n  return h\n  v' = h\n}\n";
  CHECK(error_of(text) ==
        "line 2, column 11: nothing above is called \"hh\"\n"
        "    h = v + hh * 2  # here\n"
        "            ^");
  try {
    parse(text);
  } catch (const TextError& error) {
    CHECK(error.line == 2);
    CHECK(error.column == 11);
  }
  CHECK(error_of("") ==
        "line 1, column 1: expected \"neuron\" at the beginning, but found the end of the text\n  \n  ^");
}

TEST_CASE("an error shows the surroundings of a place in a long line, and no control byte") {
  const std::string error = error_of("neuron n(x) { return x + \x1b[31m" + std::string(1000, 'y') + " }");
  CHECK_THAT(error, has_text("line 1, column 26: byte 0x1b has no meaning here"));
  CHECK(error.find('\x1b') == std::string::npos);
  CHECK(error.size() < 300);
  const std::string far = error_of("neuron n(x) { return x" + repeated(" + x", 1000) + " + y + z }");
  CHECK_THAT(far, has_text("column 4026: nothing above is called \"y\""));
  const std::size_t line = far.find('\n') + 1, caret_line = far.rfind('\n') + 1;
  CHECK(far[line + (far.find('^') - caret_line)] == 'y');
  CHECK(far.size() < 350);
}

TEST_CASE("the header's errors") {
  CHECK_THAT(error_of("nuron n(x) { return x }"),
             has_text("expected \"neuron\" at the beginning, but found \"nuron\""));
  CHECK_THAT(error_of("neuron (x) { return x }"), has_text("expected the neuron's name, but found \"(\""));
  CHECK_THAT(error_of("neuron return(x) { return x }"), has_text("expected the neuron's name, but found \"return\""));
  CHECK_THAT(error_of("neuron n x"), has_text("expected \"(\" after the neuron's name, but found \"x\""));
  CHECK_THAT(error_of("neuron n(x y)"),
             has_text("expected \")\" or \",\" or \";\" after the arguments, but found \"y\""));
  CHECK_THAT(error_of("neuron n(x; v = w)"), has_text("expected a number, but found \"w\""));
  CHECK_THAT(error_of("neuron n(x = 1)"), has_text("after the arguments, but found \"=\""));
  CHECK_THAT(error_of("neuron n(x; 2)"), has_text("expected a state's name, but found \"2\""));
  CHECK_THAT(error_of("neuron n(x;;;)"), has_text("after the arguments, but found \";\""));
  CHECK_THAT(error_of("neuron n(x; x) { return x }"), has_text("column 13: two arguments are called \"x\""));
  CHECK_THAT(error_of("neuron n() { return 1 }"), has_text("a neuron has at least one input"));
  CHECK_THAT(error_of("neuron n(x) return x"), has_text("expected \"{\" before the equations, but found \"return\""));
  CHECK_THAT(error_of("neuron n(" + std::string(65, 'x') + ") { return 1 }"),
             has_text("a name has at most 64 characters"));
  std::string many = "neuron n(x";
  for (int i = 0; i < 300; ++i) many += ", x" + std::to_string(i);
  CHECK_THAT(error_of(many + ") { return x }"),
             has_text("a neuron has at most 256 inputs, states and parameters together"));
}

TEST_CASE("a neuron that is not complete, or goes on") {
  CHECK_THAT(error_of("neuron n(x) { }"), has_text("the neuron returns nothing: write return and its outputs"));
  CHECK_THAT(error_of("neuron n(x; v) { return x }"), has_text("state v has no next value: write v' = ..."));
  CHECK_THAT(error_of("neuron n(x) { return x"),
             has_text("expected an operator or the end of the statement, but found the end of the text"));
  CHECK_THAT(error_of("neuron n(x) { return x } x"), has_text("expected nothing after the neuron, but found \"x\""));
  CHECK_THAT(error_of("neuron n(x) { return x > 0 }"),
             has_text("an output is a number, not a boolean; write where(condition, 1, 0)"));
}

TEST_CASE("statements' errors") {
  CHECK(error_in("return v") == "a neuron has one return statement: return a, b has two outputs");
  CHECK(error_in("v' = x") == "v' has a value already");
  CHECK(error_in("p' = x") == "\"p\" is not a state and has no next value");
  CHECK(error_in("x = 1") == "\"x\" already has a value; use another name");
  CHECK(error_in("a = 1; a = 2") == "\"a\" already has a value; use another name");
  CHECK(error_in("a 1") == "expected \"=\" after the name, but found \"1\"");
  CHECK(error_in("1 + 1") == "expected a statement: name = ..., state' = ... or return ..., but found \"1\"");
  CHECK(error_in("nan = 1") == "expected a statement: name = ..., state' = ... or return ..., but found \"nan\"");
  CHECK(error_in("a = 1 b = 2") == "expected an operator or the end of the statement, but found \"b\"");
  CHECK(error_in(std::string(65, 'a') + " = 1") == "a name has at most 64 characters");
  CHECK_THAT(error_of("neuron n(x; v) { v' 1 }"), has_text("expected \"=\" after the state, but found \"1\""));
}

TEST_CASE("expressions' errors") {
  CHECK(error_in("a =") == "expected an expression, but found the end of the line");
  CHECK(error_in("a = x + ;") == "expected an expression, but found \";\"");
  CHECK(error_in("a = return") == "expected an expression, but found \"return\"");
  CHECK(error_in("a = b") == "nothing above is called \"b\"");
  CHECK(error_in("a = a + 1") == "nothing above is called \"a\"");
  CHECK(error_in("a = exp") == "\"exp\" is a function: write exp(...)");
  CHECK(error_in("a = foo(x)") == "no function is called \"foo\"");
  CHECK(error_in("a = v(x)") == "no function is called \"v\"");
  CHECK(error_in("a = argument(x)") == "no function is called \"argument\"");
  CHECK(error_in("a = add(x, v)") == "no function is called \"add\"");
  CHECK(error_in("a = (x + 1") == "expected \")\" to close the parenthesis, but found \"}\"");
  CHECK(error_in("a = exp(x") == "expected \")\" or \",\" after the operands of exp, but found \"}\"");
  CHECK(error_in("a = exp()") == "exp takes 1 operand, but 0 are given");
  CHECK(error_in("a = clamp(x, 1)") == "clamp takes 3 operands, but 2 are given");
  CHECK(error_in("a = leaky_relu()") == "leaky_relu takes 2 operands, but 0 are given");
  CHECK(error_in("a = x < v < p") == "comparisons do not chain: write a < b and b < c");
  CHECK(error_in("a = x && v") == "'&' has no meaning here; write and");
  CHECK(error_in("a = x ^ 2") == "'^' has no meaning here; write pow(a, b) for a power");
  CHECK(error_in("a = 2x") == "\"2x\" is not a number, or does not fit double precision");
  CHECK(error_in("a = 1e999") == "\"1e999\" is not a number, or does not fit double precision");
  CHECK(error_in("a = 1.2.3") == "\"1.2.3\" is not a number, or does not fit double precision");
  CHECK(error_in("a = 0x10") == "\"0x10\" is not a number, or does not fit double precision");
  CHECK(error_in("a = (x > 0) + 1") ==
        "+: operand 1 must be a number, but is a boolean; write where(condition, 1, 0) for one");
  CHECK(error_in("a = not x > 0") ==
        "not: operand 1 must be a boolean, but is a number; write a comparison, such as x > 0");
  CHECK(error_in("a = x and true") ==
        "and: operand 1 must be a boolean, but is a number; write a comparison, such as x > 0");
}

TEST_CASE("surrogates' and custom gradients' errors") {
  CHECK(error_in("a = spike(x)") == "expected \",\" and a surrogate, such as atan(2), but found \")\"");
  CHECK(error_in("a = spike(x, 2)") == "expected a surrogate, such as atan(2), but found \"2\"");
  CHECK_THAT(error_in("a = spike(x, tan(2))"), has_text("unknown surrogate \"tan\"; known are sigmoid, atan"));
  CHECK(error_in("a = spike(x, atan(2, 3))") ==
        "surrogate atan takes 1 number, or none for its defaults, but 2 are given");
  CHECK(error_in("a = spike(x, atan(p))") == "expected a number, but found \"p\"");
  CHECK(error_in("a = spike(x, atan(-1))") == "surrogate atan: alpha must be a finite number above 0, but is -1");
  CHECK(error_in("a = spike(x, atan(2)") == "expected \")\" or \",\" after the operands of spike, but found \"}\"");
  CHECK(error_in("a = spike(x, atan(2 3))") == "expected \")\" after the surrogate's numbers, but found \"3\"");
  CHECK(error_in("a = custom_gradient()") ==
        "custom_gradient takes a value, and then pairs: a variable, and the derivative by it");
  CHECK(error_in("a = custom_gradient(x, v)") ==
        "custom_gradient takes a value, and then pairs: a variable, and the derivative by it");
}

TEST_CASE("words of other languages are answered with those of this one") {
  const std::string choice = "; write where(condition, a, b) for a choice";
  const std::string noise = "; write normal(), uniform(), bernoulli(p) or poisson(rate) for a random number";
  const std::string product =
      "; a neuron computes element by element: compute the product outside, and pass it as an input";
  CHECK(error_in("a = 1 if x > 0 else 2") ==
        "expected an operator or the end of the statement, but found \"if\"" + choice);
  CHECK(error_in("if x > 0 { a = 1 }") == "no statement begins with \"if\"" + choice);
  CHECK(error_in("a = if(x > 0, 1, 2)") == "no function is called \"if\"" + choice);
  CHECK(error_in("a = x > 0 ? 1 : 2") == "'?' has no meaning here" + choice);
  CHECK(error_in("a = x + randn(1)") == "no function is called \"randn\"" + noise);
  CHECK(error_in("a = x + 0.1 * noise_like") == "nothing above is called \"noise_like\"");
  CHECK(error_in("a = dropout(x, 0.5)") ==
        "no function is called \"dropout\"; write x * draw_once(bernoulli(keep)) / keep for dropout with one mask in "
        "all steps");
  CHECK(error_in("a = x @ v") == "'@' has no meaning here" + product);
  CHECK(error_in("a = matmul(x, v)") == "no function is called \"matmul\"" + product);
  CHECK(
      error_in("for i in x { }") ==
      "no statement begins with \"for\"; the text is one step, which the operator repeats over time: it has no loops");
  CHECK(error_in("a = x ** 2") == "expected an expression, but found \"*\"; write pow(a, b) for a power");
  CHECK(error_in("a = x ^ 2") == "'^' has no meaning here; write pow(a, b) for a power");
  CHECK(error_in("a = x % 2") == "'%' has no meaning here; write remainder(a, b), or fmod(a, b)");
  CHECK(error_in("a = x > 0 && v > 0") == "'&' has no meaning here; write and");
  CHECK(error_in("a = x[0]") ==
        "'[' has no meaning here; a neuron reads one element of each argument: pass the indexed values as a separate "
        "input");
  CHECK_THAT(error_in("a = mean(x)"), has_text("reduce outside, and pass the result as an input"));
  // These are names like any other.
  CHECK(error_in("mean = x; sum = mean + 1; if = 2") == "");
}

TEST_CASE("draws that cannot be are refused") {
  CHECK(error_in("a = bernoulli(1.5)") == "bernoulli: the probability must be in [0, 1], but is 1.5");
  CHECK(error_in("a = bernoulli(nan)") == "bernoulli: the probability must be in [0, 1], but is nan");
  CHECK(error_in("a = poisson(-1)") == "poisson: the rate must be finite and not negative, but is -1");
  CHECK(error_in("a = bernoulli()") == "bernoulli takes 1 operand, but 0 are given");
  CHECK_THAT(error_in("a = normal(0, 1)"), has_text("write mean + deviation * normal()"));
  CHECK_THAT(error_in("a = draw_once(x)"), has_text("draw_once takes a draw itself, such as bernoulli(0.5)"));
  CHECK(error_in("a = draw(normal())") == "expected \",\" and the draw's number, but found \")\"");
  CHECK(error_in("a = draw(normal(), -1)") == "the number of a draw is a whole one below 8192");
  CHECK(error_in("a = poisson(1); b = draw(normal(), 1)") == "normal: another draw has number 1");
  CHECK(error_in("a = draw(poisson(1), 8191)") == "poisson: the draws of a neuron are numbered below 8192");
}

TEST_CASE("text from strangers is bounded in size, depth and nodes") {
  CHECK_THAT(error_of(std::string(most_text + 1, ' ')),
             has_text("a neuron text has at most 2097152 bytes, and this one has more"));
  for (const char* open : {"(", "-", "not ", "exp(", "where(x > 0, ", "1 + (", "spike("})
    CHECK_THAT(error_in("a = " + repeated(open, 100000)), has_text("more than 200 nested expressions"));
  CHECK(error_in("a = " + repeated("(", 198) + "x" + repeated(")", 198)) == "");

  std::string chain = "a = x";
  for (int i = 0; i < 5000; ++i) chain += " + " + std::to_string(i);
  CHECK(error_in(chain) == "a neuron or a rule has at most 4096 operations, arguments and constants included");
  CHECK(error_in("a = exp(" + repeated("x, ", 10000) + "x)") == "too many operands");
  CHECK(error_in("a = spike(x, atan(" + repeated("1, ", 10000) + "1))") ==
        "expected \")\" after the surrogate's numbers, but found \",\"");
  CHECK_THAT(error_of("neuron n(x) { return " + repeated("x, ", 500) + "x }"),
             has_text("a neuron has 1 to 256 outputs, not 501"));
  CHECK(error_in("a = x" + repeated(" + x - x", 400000 / 8)) ==
        "a neuron or a rule has at most 4096 operations, arguments and constants included");
}

TEST_CASE("damaged texts are read or refused, and nothing else") {
  const std::string sound = print(
      parse("neuron n(x, y; v, a = 0.5; tau) { h = v + (x - v) / tau; s = spike(h - (1 + a), atan(2)); return s, -y; "
            "v' = where(s > 0.5 and not (h < 0), 0, h); a' = custom_gradient(round(a), a, 1e-3) }"));
  const std::string alphabet = "()+-*/<>=!,;'{} \n#.e019xvat\xff\0";
  int read = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    test::Dice dice(seed);
    std::string text = sound;
    for (std::size_t i = 0, n = 1 + dice.below(3); i < n && !text.empty(); ++i) {
      const std::size_t at = dice.below(text.size());
      switch (dice.below(4)) {
        case 0: text[at] = alphabet[dice.below(alphabet.size())]; break;
        case 1: text.erase(at, 1 + dice.below(5)); break;
        case 2: text.insert(at, text.substr(dice.below(text.size()), dice.below(20))); break;
        default: text.resize(at + 1);
      }
    }
    INFO("seed " << seed << "\n" << text);
    try {
      const std::string printed = print(parse(text));
      REQUIRE(print(parse(printed)) == printed);
      ++read;
    } catch (const TextError& error) {
      REQUIRE(error.line >= 1);
      ++refused;
    }
  }
  CHECK(read > 100);
  CHECK(refused > 10000);
}

}  // namespace spikeforge::graph
