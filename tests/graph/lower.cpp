#include "csrc/graph/internal/lower.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"
#include "tests/graph/random_graph.h"

namespace spikeforge::graph {
namespace {

template <class F> bool keeps_bits(const Cell& cell, std::uint64_t seed) {
  const Graph plain = lowered(cell.graph());
  const std::vector<double> given = test::random_arguments(cell.graph(), seed);
  const std::vector<F> arguments(given.begin(), given.end());
  return test::same_bits(evaluate<F>(plain, arguments), evaluate<F>(cell.graph(), arguments));
}

}  // namespace

TEST_CASE("lowering keeps every bit, and leaves plain arithmetic") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const Cell cell = test::random_cell(seed, {.is_tame = seed % 2 == 0});
    const Graph plain = lowered(cell.graph());
    verify(plain);
    for (const Node& node : plain.nodes())
      for (const Op gone : {Op::spike, Op::spike_strict, Op::select, Op::detach, Op::add_gradient})
        REQUIRE(node.op != gone);
    if (keeps_bits<float>(cell, seed) && keeps_bits<double>(cell, seed)) continue;
    const Cell small = test::shrunk(cell, [&](const Cell& c) { return !keeps_bits<double>(c, seed); });
    FAIL("seed " << seed << "\n" << print(small) << print(lowered(small.graph()), "lowered"));
  }
}

TEST_CASE("a reset by selection uses the comparison of the spike") {
  const Cell cell = parse("neuron n(x; v) { h = v + x; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }");
  CHECK(print(lowered(cell.graph()), "n") == R"(graph n(x, v) {
  h = v + x
  t1 = h - 1 >= 0
  s = where(t1, 1, 0)
  return s, where(t1, 0, h)
}
)");
}

}  // namespace spikeforge::graph
