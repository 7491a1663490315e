#include "csrc/autodiff/gather.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace spikeforge::autodiff {

using graph::Cell;
using graph::Graph;

TEST_CASE("a gathered vjp gives the gradients of the vjp") {
  int checked = 0, rearranged = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Cell cell = test::random_cell(seed);
    const Graph plain = vjp(cell.graph());
    const Range next = {cell.graph().argument_count() + cell.output_count(), cell.state_count()};
    const Graph graph = gathered(plain, next);
    INFO("seed " << seed << "\n" << print(cell) << print(plain, "vjp") << print(graph, "gathered"));
    verify(graph);
    REQUIRE(graph.argument_count() == plain.argument_count());
    REQUIRE(graph.results().size() == plain.results().size());
    rearranged += print(graph, "vjp") != print(plain, "vjp");

    const std::vector<double> at = test::random_arguments(plain, seed);
    const std::vector<double> expected = graph::evaluate<double>(plain, at);
    const std::vector<double> actual = graph::evaluate<double>(graph, at);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // Products of large derivatives are summed in a different order, and cancel.
      if (!std::isfinite(expected[i]) || std::abs(expected[i]) > 1e6) continue;
      REQUIRE(std::abs(actual[i] - expected[i]) <= 1e-9 * std::max(1., std::abs(expected[i])));
      ++checked;
    }
  }
  CHECK(checked > 3000);
  CHECK(rearranged > 200);
}

TEST_CASE("the gathered vjp of a LIF waits for the next step in one multiplication and one sum") {
  const Cell lif = graph::parse(R"(neuron lif(x; v) {
    h = v + 0.5 * (x - v)
    s = spike(h - 1, atan(2))
    return s
    v' = select(s, 0, h)
  })");
  CHECK(print(gathered(vjp(lif.graph()), {3, 1}), "vjp") == R"(graph vjp(x, v, grad0, grad1) {
  h = v + 0.5 * (x - v)
  t1 = h - 1
  t2 = surrogate_gradient(t1, atan(2))
  t3 = grad1 * (where(t1 >= 0, 0, 1) + (0 - h) * t2) + grad0 * t2
  t4 = t3 * 0.5
  return t4, t3 - t4
}
)");
}

TEST_CASE("a branch that was not taken has no gradient, however large that by the next state") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Cell cell = graph::parse("neuron n(x; v) { h = 0.5 * v + x; return h; v' = where(h >= 1, 0.25 * v, h) }");
  const Graph graph = gathered(vjp(cell.graph()), {3, 1});
  // x, v, and the upstream gradients of the output and of v'.
  CHECK(graph::evaluate<double>(graph, std::vector<double>{3, 1, 2, infinity}) == std::vector<double>{2, infinity});
  CHECK(graph::evaluate<double>(graph, std::vector<double>{0, 1, 2, 4}) == std::vector<double>{6, 3});

  const Cell reset = graph::parse("neuron n(x; v) { h = 0.5 * v + x; return h; v' = where(h >= 1, 0, h) }");
  const Graph detached = gathered(vjp(reset.graph()), {3, 1});
  CHECK(graph::evaluate<double>(detached, std::vector<double>{3, 1, 2, infinity}) == std::vector<double>{2, 1});
}

TEST_CASE("a branch that was not taken has no gradient, however steep") {
  const Cell cell = graph::parse("neuron n(x; v) { return x; v' = where(v > 0, sqrt(v), 3 * v) }");
  const Graph graph = gathered(vjp(cell.graph()), {3, 1});
  CHECK(graph::evaluate<double>(graph, std::vector<double>{1, 0, 0, 2})[1] == 6);
}

}  // namespace spikeforge::autodiff
