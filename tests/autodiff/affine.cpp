#include "csrc/autodiff/affine.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <cmath>
#include <stdexcept>

namespace spikeforge::autodiff {

using graph::Cell;
using graph::Graph;
using graph::Id;

TEST_CASE("the gradients of the states are the affine map of those of the next states") {
  int checked = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Cell cell = test::random_cell(seed);
    const std::size_t n = cell.state_count(), arguments = cell.graph().argument_count();
    const Graph backward = vjp(cell.graph());
    const Range next = {arguments + cell.output_count(), n};
    const Graph map = affine_map(backward, next, {cell.input_count(), n});
    INFO("seed " << seed << "\n" << print(cell) << print(backward, "vjp") << print(map, "map"));
    verify(map);
    REQUIRE(map.results().size() == n * n + n);
    const graph::Dependence depends(map);
    for (const Id result : map.results())
      for (std::size_t j = 0; j < n; ++j) REQUIRE(!depends.on(result, next.first + j));

    const std::vector<double> at = test::random_arguments(backward, seed);
    const std::vector<double> gradients = graph::evaluate<double>(backward, at);
    const std::vector<double> entries = graph::evaluate<double>(map, at);
    for (std::size_t i = 0; i < n; ++i) {
      double sum = entries[n * n + i], scale = std::abs(sum);
      for (std::size_t j = 0; j < n; ++j) {
        sum += entries[i * n + j] * at[next.first + j];
        scale += std::abs(entries[i * n + j]);
      }
      const double gradient = gradients[cell.input_count() + i];
      if (!std::isfinite(gradient) || !(scale < 1e8)) continue;
      REQUIRE(std::abs(sum - gradient) <= 1e-12 * std::max(1., scale));
      ++checked;
    }
  }
  CHECK(checked > 800);
}

TEST_CASE("the map of a LIF is one factor and one summand") {
  const Cell lif = graph::parse(R"(neuron lif(x; v; decay) {
    h = v + decay * (x - v)
    s = spike(h - 1, atan(2))
    return s
    v' = select(detach(s), 0, h)
  })");
  const Graph map = affine_map(vjp(lif.graph()), {4, 1}, {1, 1});
  CHECK(print(map, "map") == R"(graph map(x, v, decay, grad0, grad1) {
  h = v + decay * (x - v)
  t1 = h - 1
  t2 = grad0 * surrogate_gradient(t1, atan(2))
  t3 = where(t1 >= 0, 0, 1)
  return t3 - t3 * decay, t2 - t2 * decay
}
)");
}

TEST_CASE("a graph that is not affine is refused") {
  Graph square;
  const Id x = square.argument("x");
  square.add_result(square.make(graph::Op::multiply, {x, x}));
  CHECK_THROWS_WITH(affine_map(square, {0, 1}, {0, 1}), "affine_map: node 1 (multiply) is not affine");
  Graph sine;
  sine.add_result(sine.make(graph::Op::sin, {sine.argument("x")}));
  CHECK_THROWS_AS(affine_map(sine, {0, 1}, {0, 1}), std::logic_error);
}

}  // namespace spikeforge::autodiff
