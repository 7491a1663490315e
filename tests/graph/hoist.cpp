#include "csrc/graph/internal/hoist.h"
#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"
#include "tests/graph/random_graph.h"

namespace spikeforge::graph {

TEST_CASE("operations on parameters alone leave the step") {
  const Cell cell = parse(R"(neuron n(x; v; tau, gain, unused) {
    decay = 1 / tau
    h = v + (gain * x - v) * decay + (0.5 + 0.25)
    on = tau > 2
    return where(on, h, sqrt(abs(tau)))
    v' = h * gain
  })");
  const Hoisted hoisted = hoist(cell.graph(), 2, 3);
  CHECK(print(hoisted.prologue, "prologue") == R"(graph prologue(tau, gain, unused) {
  decay = 1 / tau
  return tau, gain, decay, 0.5 + 0.25, sqrt(abs(tau))
}
)");
  CHECK(print(hoisted.inner, "inner") == R"(graph inner(x, v, tau, gain, decay, k3, k4) {
  h = v + (gain * x - v) * decay + k3
  on = tau > 2
  return where(on, h, k4), h * gain
}
)");
}

TEST_CASE("a result that depends on parameters alone is hoisted as well") {
  const Cell cell = parse("neuron n(x;; p) { return 2 * p, x, p, 3 }");
  const Hoisted hoisted = hoist(cell.graph(), 1, 1);
  CHECK(print(hoisted.prologue, "prologue") == "graph prologue(p) {\n  return p, 2 * p\n}\n");
  CHECK(print(hoisted.inner, "inner") == "graph inner(x, p, k1) {\n  return k1, x, p, 3\n}\n");
}

TEST_CASE("a prologue and the rest have the bits of the whole") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Cell cell = test::random_cell(seed);
    const std::size_t first = cell.input_count() + cell.state_count();
    const Hoisted hoisted = hoist(cell.graph(), first, cell.param_count());
    verify(hoisted.prologue);
    verify(hoisted.inner);
    const std::vector<double> given = test::random_arguments(cell.graph(), seed);
    const std::vector<float> all(given.begin(), given.end());
    std::vector<float> arguments(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
    for (const float value : evaluate<float>(hoisted.prologue, std::span(all).subspan(first)))
      arguments.push_back(value);
    INFO("seed " << seed << "\n" << print(cell));
    REQUIRE(test::same_bits(evaluate<float>(hoisted.inner, arguments), evaluate<float>(cell.graph(), all)));
    // Nothing more can be hoisted: hoisted values are arguments, and nodes that depend on them only are not numbers.
    const std::size_t count = hoisted.prologue.results().size();
    const std::vector<bool> left = hoistable_nodes(hoisted.inner, first, count);
    for (Id id = 0; id < hoisted.inner.size(); ++id) {
      bool of_numbers = false;
      for (const Id operand : hoisted.inner.operands(id)) of_numbers |= hoisted.inner.kind(operand) == Kind::number;
      if (left[id]) REQUIRE(!of_numbers);
    }
  }
}

}  // namespace spikeforge::graph
