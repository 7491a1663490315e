#include "csrc/graph/internal/verify.h"
#include "csrc/graph/errors.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

namespace spikeforge::graph {

using test::has_text;

TEST_CASE("the verifier passes random cells") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    CHECK_NOTHROW(verify(test::random_cell(seed, {.has_names = true})));
  }
}

TEST_CASE("the verifier finds what no graph has") {
  const Node argument{.op = Op::argument};
  const std::vector<Node> early = {argument, {.op = Op::exp, .operands = {1}}};
  CHECK_THROWS_WITH(verify(early, 1, {}), "not a graph: node 1 (exp) has the operand 1, which does not come before it");
  const std::vector<Node> kinds = {argument, {.op = Op::logical_not, .operands = {0}}};
  CHECK_THROWS_WITH(verify(kinds, 1, {}), "not a graph: operand 1 of node 1 (logical_not) has the wrong kind");
  const std::vector<Node> late = {{.op = Op::constant}, argument};
  CHECK_THROWS_WITH(verify(late, 1, {}), "not a graph: node 0 (constant) among 1 arguments");
  CHECK_THROWS_WITH(verify(late, 3, {}), "not a graph: 3 arguments in 2 nodes");
  const std::vector<Node> fine = {argument, {.op = Op::truth}};
  const Id truth[] = {1}, none[] = {7};
  CHECK_THROWS_WITH(verify(fine, 1, truth), "not a graph: result 1 is not a number");
  CHECK_THROWS_WITH(verify(fine, 1, none), "not a graph: result 7 is not a number");
}

TEST_CASE("the verifier finds an unfinished cell and names that are taken") {
  Cell cell({"n", {"x"}, {"v"}, {}});
  CHECK_THROWS_WITH(verify(cell), has_text("0 results with 1 states"));
  cell.finish(std::array{cell.input(0)}, std::array{cell.state(0)});
  CHECK_NOTHROW(verify(cell));
  const Id e = cell.graph().make(Op::exp, {0});
  cell.graph().set_name(e, "v");
  CHECK_THROWS_WITH(verify(cell), has_text("two nodes are called v"));

  Cell other({"n", {"x"}, {}, {}});
  other.finish(std::array{other.input(0)}, {});
  other.graph().set_name(other.graph().make(Op::exp, {0}), "not a name");
  CHECK_THROWS_WITH(verify(other), has_text("node 1 is called \"not a name\""));
}

}  // namespace spikeforge::graph
