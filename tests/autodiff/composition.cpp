// The composition of several steps of a cell gives the same states as the cell itself, for any initial state.
#include "csrc/autodiff/affine.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <cmath>
#include <string>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;

using Numbers = std::vector<double>;

Numbers random_numbers(test::Dice& dice, std::size_t count) {
  Numbers numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(dice.uniform(-1, 1));
  return numbers;
}

// The states after a step.
Numbers stepped(const Cell& cell, const Numbers& x, const Numbers& states, const Numbers& params) {
  Numbers arguments = x;
  arguments.insert(arguments.end(), states.begin(), states.end());
  arguments.insert(arguments.end(), params.begin(), params.end());
  const Numbers results = graph::evaluate<double>(cell.graph(), arguments);
  return {results.begin() + static_cast<std::ptrdiff_t>(cell.output_count()), results.end()};
}

std::string refusal(const char* text) {
  return test::message_of<graph::GraphError>([&] { composition(graph::parse(text)); });
}

}  // namespace

TEST_CASE("a composition maps the states before some steps to those that the steps reach") {
  for (const char* text :
       {"neuron li(x; v; tau) { n = v + (x - v) / tau; return n; v' = n }",
        "neuron gated(x, g; v) { a = sigmoid(g); return spike(v - 1, atan(2)); v' = a * v + (1 - a) * x }",
        "neuron resonator(x; u, w; d, o) { return u; u' = d * (u * cos(o) - w * sin(o)) + x\n"
        "w' = d * (u * sin(o) + w * cos(o)) }",
        "neuron cascade(x; i, v, a; t) { j = lerp(i, x, 0.25); return v; i' = j; v' = (v + j) / t; a' = 0.5 * a - v }",
        "neuron held(x, g; v) { return v; v' = where(g > 0, v, x) }", "neuron last(x; v) { return v; v' = x }",
        "neuron straight(x; v; b) { s = spike(v, atan(2)); return s; v' = detach(v) * 0.5 + b * x }"}) {
    const Cell cell = graph::parse(text), composed = composition(cell);
    INFO(text << "\n" << print(composed));
    verify(composed.graph());
    const std::size_t n = cell.state_count();
    REQUIRE(composed.state_count() == n * (n + 1));
    test::Dice dice(7);
    const Numbers params = random_numbers(dice, cell.param_count()), first = random_numbers(dice, n);
    Numbers states = first, map;
    for (const graph::State& state : composed.signature().states) map.push_back(state.initial);
    for (int t = 0; t < 20; ++t) {
      const Numbers x = random_numbers(dice, cell.input_count());
      states = stepped(cell, x, states, params);
      map = stepped(composed, x, map, params);
      for (std::size_t i = 0; i < n; ++i) {
        double sum = map[n * n + i];
        for (std::size_t j = 0; j < n; ++j) sum += map[i * n + j] * first[j];
        REQUIRE(std::abs(sum - states[i]) <= 1e-12 * std::max(1., std::abs(states[i])));
      }
    }
  }
}

TEST_CASE("a cell whose next states are not affine has no composition, and the state and the reason are named") {
  CHECK(refusal("neuron lif(x; v) { h = 0.5 * v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }") ==
        "the next v is not affine in the states: a condition on a state chooses it, as a reset does");
  CHECK(refusal("neuron soft(x; v) { h = 0.5 * v + x; s = spike(h - 1, atan(2)); return s; v' = h - detach(s) }") ==
        "the next v is not affine in the states: a condition on a state chooses it, as a reset does");
  CHECK(refusal("neuron two(x; i, v) { return v; i' = x; v' = v * i }") ==
        "the next v is not affine in the states: it multiplies two values that depend on states");
  CHECK(refusal("neuron ratio(x; v) { return v; v' = x / (1 + v) }") ==
        "the next v is not affine in the states: it divides by a value that depends on a state");
  CHECK(refusal("neuron bent(x; v) { return v; v' = tanh(v) + x }") ==
        "the next v is not affine in the states: it takes tanh of a value that depends on a state");
}

}  // namespace spikeforge::autodiff
