#include "csrc/graph/text.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/number_text.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/trace.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"
#include "tests/graph/random_graph.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace spikeforge::graph {
namespace {

bool survives(const Cell& cell) {
  const std::string text = print(cell);
  const Cell again = parse(text);
  verify(again);
  return print(again) == text;
}

// The same numbers, before and after.
bool computes_the_same(const Cell& cell, std::uint64_t seed) {
  const std::vector<double> given = test::random_arguments(cell.graph(), seed);
  const std::vector<float> arguments(given.begin(), given.end());
  return test::same_bits(evaluate<float>(cell.graph(), arguments),
                         evaluate<float>(parse(print(cell)).graph(), arguments));
}

std::string returned(const std::string& expression) {
  const std::string text = print(parse("neuron n(x; v; a, b, c) { return " + expression + "\n v' = v }"));
  const std::size_t begin = text.find("return ") + 7;
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

TEST_CASE("a neuron on one line is read, and printed one statement a line") {
  const Cell cell = parse(
      "neuron alif(x; v, a; tau) { decay = 1 / tau; h = v + (x - v) * decay; s = spike(h - (1 + a), atan(2)); "
      "return s; v' = select(s, 0, h); a' = 0.9 * a + s }");
  CHECK(print(cell) == R"(neuron alif(x; v, a; tau) {
  decay = 1 / tau
  h = v + (x - v) * decay
  s = spike(h - (1 + a), atan(2))
  return s
  v' = select(s, 0, h)
  a' = 0.9 * a + s
}
)");
}

TEST_CASE("a text on one line is equivalent, without its comments") {
  const std::string text =
      "neuron n(x;  # the input\n  v; tau) {\r\n\n  h = v + x / tau # charge; no } here\n  return h\n  v' = h\n}\n# "
      "end";
  CHECK(on_a_line(text) == "neuron n(x; v; tau) { h = v + x / tau; return h; v' = h }");
  CHECK(print(parse(on_a_line(text))) == print(parse(text)));
  CHECK(on_a_line("") == "");
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const std::string printed = print(test::random_cell(seed, {.operations = 15}));
    REQUIRE(print(parse(on_a_line(printed))) == printed);
  }
}

TEST_CASE("statements come in any order, and a state keeps its value within the step") {
  const Cell cell = parse(R"(
# A comment.
neuron n (x; v = 0.5, w = -inf)   # and another
{
  v' = v + x   # v is still that before the step
  return v, w; ; w' = maximum(v,
                              w) }
)");
  CHECK(print(cell) == R"(neuron n(x; v = 0.5, w = -inf) {
  return v, w
  v' = v + x
  w' = maximum(v, w)
}
)");
}

TEST_CASE("empty lists at the end of the header are left out") {
  CHECK(print(parse("neuron n(x) { return x }")) == "neuron n(x) {\n  return x\n}\n");
  CHECK(print(parse("neuron n(x;;) { return x }")) == "neuron n(x) {\n  return x\n}\n");
  CHECK(print(parse("neuron n(x;;p) { return x }")) == "neuron n(x;; p) {\n  return x\n}\n");
  CHECK(print(parse("neuron n(x;v;) { return x; v'=v }")) == "neuron n(x; v) {\n  return x\n  v' = v\n}\n");
}

TEST_CASE("parentheses stand where they must, and nowhere else") {
  for (const char* text :
       {"a + b + c", "a + (b + c)", "a - (b - c)", "a - b - c", "a * b + c", "a * (b + c)", "a / (b * c)", "a / b * c",
        "-(a + b)", "-a * b", "-(a * b)", "a * -2", "-2 * a", "a - -1", "exp(a + b) * c",
        "where(not (a < b) and (b < c or c == a), 1, 0)", "where(a + 1 < b * 2 or b < c and c < a, a, b)",
        "where(not true, inf, nan)", "where(a < b and (b < c and c < a), -0, -inf)"})
    CHECK(returned(text) == (std::string(text) == "where(not true, inf, nan)" ? "nan" : text));
  CHECK(returned("((a + b)) + (c)") == "a + b + c");
  CHECK(returned("- - a") == "a");
  CHECK(returned("a - -b") == "a + b");
  CHECK(returned("--a-(-1.50)") == "a - -1.5");
}

TEST_CASE("numbers are read and printed without loss") {
  for (const double number : {0., 1., .1, 1e22, 1e-7, 123456789012345680., 5e-324, 1.7976931348623157e308, 1 / 3.}) {
    CHECK(number_of(text_of(number)) == number);
    const std::string text = text_of(number);
    CHECK(returned("a + " + text) == "a + " + text);
  }
  CHECK(returned("a + 1E3 + .5 + 2. + 0.10e-1 + 1e+2") == "a + 1000 + 0.5 + 2 + 0.01 + 100");
  CHECK(text_of(-HUGE_VAL) == "-inf");
  CHECK(text_of(-std::nan("")) == "nan");
  CHECK(returned("inf") == "inf");
  CHECK(returned("-nan") == "nan");
  CHECK(returned("-0") == "-0");
}

TEST_CASE("a name is kept, an alias is not, and an expression that is used twice gets a name") {
  CHECK(print(parse(R"(neuron n(x; v) {
    exp = exp(x)        # a function's name is free: nothing else has a parenthesis
    alias = x; two = 2; on = x > two
    t1 = sin(alias)
    return where(on, cos(exp), cos(exp) + t1); v' = sqrt(v) + sqrt(v)
  })")) == R"(neuron n(x; v) {
  exp = exp(x)
  on = x > 2
  t1 = sin(x)
  t2 = cos(exp)
  t3 = sqrt(v)
  return where(on, t2, t2 + t1)
  v' = t3 + t3
}
)");
}

TEST_CASE("a long expression is cut into statements") {
  std::string sum = "x";
  for (int i = 0; i < 300; ++i) sum += " + " + std::to_string(i);
  const std::string text = print(parse("neuron n(x) { return " + sum + " }"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  CHECK(print(parse(text)) == text);
}

TEST_CASE("omitted parts are filled in: default slopes, surrogates' numbers, custom gradients") {
  CHECK(returned("leaky_relu(a) + elu(b)") == "leaky_relu(a, 0.01) + elu(b, 1)");
  CHECK(returned("leaky_relu(a, b)") == "leaky_relu(a, b)");
  CHECK(returned("spike(a, s2nn)") == "spike(a, s2nn(4, 1))");
  CHECK(returned("spike_strict(a, leaky_k_relu(-.5, 2))") == "spike_strict(a, leaky_k_relu(-0.5, 2))");
  CHECK(returned("spike(a, none())") == "spike(a, none)");
  CHECK(returned("custom_gradient(a, b, c)") == "add_gradient(detach(a), b, c)");
  CHECK(returned("custom_gradient(round(a), a, 1, b, 2)") ==
        "add_gradient(add_gradient(detach(round(a)), a, 1), b, 2)");
  CHECK(returned("custom_gradient(a)") == "detach(a)");
  CHECK(returned("atan(a)") == "atan(a)");  // the function, not the surrogate
}

TEST_CASE("print, parse, print is the identity, and keeps every bit") {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const test::RandomStyle style{
        .operations = static_cast<int>(seed % 60), .is_tame = seed % 3 != 0, .has_names = true};
    const Cell cell = test::random_cell(seed, style);
    if (survives(cell) && computes_the_same(cell, seed)) continue;
    const Cell small = test::shrunk(cell, [&](const Cell& c) { return !survives(c) || !computes_the_same(c, seed); });
    FAIL("seed " << seed << "\n" << print(small) << print(parse(print(small))));
  }
}

TEST_CASE("the largest cell can be printed and read again") {
  const std::string stem(most_name_length - 4, 'n');
  Cell cell({"n", {stem + "x"}, {}, {}});
  Id last = cell.input(0);
  while (cell.graph().size() < most_nodes - 2) {
    last = cell.graph().make(Op::clamp, {last, last, cell.input(0)});
    cell.graph().set_name(last, stem + std::to_string(cell.graph().size()));
  }
  cell.finish(std::array{cell.graph().make(Op::subtract, {last, cell.graph().constant(-1)})}, {});
  const std::string text = print(cell);
  CHECK(text.size() < most_text);
  CHECK(print(parse(text)) == text);
}

TEST_CASE("neurons that are lambdas have short texts") {
  const Cell plif = trace("plif", {"x"}, {"v"}, {"w", "v_threshold"}, [](Value x, Value v, Value w, Value v_threshold) {
    const Value h = v - 1 / (1 + exp(-w)) * (v - 0) + x;
    const Value s = spike(h - v_threshold, surrogate::atan());
    return step({s}, {h - select(s, v_threshold, 0)});
  });
  CHECK(print(plif) == R"(neuron plif(x; v; w, v_threshold) {
  t1 = v - 1 / (1 + exp(-w)) * v + x
  t2 = spike(t1 - v_threshold, atan(2))
  return t2
  v' = t1 - select(t2, v_threshold, 0)
}
)");
  const Cell izhikevich = trace(
      "izhikevich", {"x"}, {"v", "w"}, {"tau", "v_c", "a0", "v_threshold", "v_rest", "v_reset", "tau_w", "a", "b"},
      [](Value x, Value v, Value w, Value tau, Value v_c, Value a0, Value v_threshold, Value v_rest, Value v_reset,
         Value tau_w, Value a, Value b) {
        const Value h = v + 1 / tau * (x + a0 * (v - v_rest) * (v - v_c) - w);
        const Value s = spike(h - v_threshold, surrogate::rect());
        return step({s}, {select(detach(s), v_reset, h), w + 1 / tau_w * (a * (h - v_rest) - w) + b * s});
      });
  CHECK(print(izhikevich) ==
        R"(neuron izhikevich(x; v, w; tau, v_c, a0, v_threshold, v_rest, v_reset, tau_w, a, b) {
  t1 = v + 1 / tau * (x + a0 * (v - v_rest) * (v - v_c) - w)
  t2 = spike(t1 - v_threshold, rect(1))
  return t2
  v' = select(detach(t2), v_reset, t1)
  w' = w + 1 / tau_w * (a * (t1 - v_rest) - w) + b * t2
}
)");
}

TEST_CASE("every example of docs/neuron_text.md is read, and those that are printed texts are printed so") {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../docs/neuron_text.md";
  if (!std::filesystem::exists(path)) SPIKEFORGE_SKIP("the sources are not where they were built");
  std::stringstream page;
  page << std::ifstream(path).rdbuf();
  const std::string text = page.str();
  int examples = 0;
  for (std::size_t at = 0; (at = text.find("```\nneuron ", at)) != std::string::npos; ++examples) {
    const std::size_t begin = at + 4, end = text.find("```", begin);
    const std::string example = text.substr(begin, end - begin);
    INFO(example);
    const std::string printed = print(parse(example));
    CHECK(print(parse(printed)) == printed);
    if (text.rfind("prints as", at) != std::string::npos && at - text.rfind("prints as", at) < 20)
      CHECK(printed == example);
    at = end;
  }
  CHECK(examples >= 5);
}

}  // namespace spikeforge::graph
