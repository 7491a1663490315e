#include "csrc/graph/cell.h"
#include "csrc/graph/errors.h"

#include "tests/catch.h"

namespace spikeforge::graph {

TEST_CASE("a cell's arguments are its inputs, states and parameters, in this order") {
  Cell cell({"n", {"x", "y"}, {"v", {"a", .5}}, {"tau"}});
  CHECK(cell.graph().argument_count() == 5);
  CHECK(cell.graph().name(cell.input(1)) == "y");
  CHECK(cell.graph().name(cell.state(1)) == "a");
  CHECK(cell.graph().name(cell.param(0)) == "tau");
  CHECK(cell.signature().states[1].initial == .5);
  cell.finish(std::array{cell.input(0)}, std::array{cell.state(1), cell.state(0)});
  CHECK(cell.output_count() == 1);
  CHECK(cell.output(0) == cell.input(0));
  CHECK(cell.next_state(0) == cell.state(1));
}

TEST_CASE("names are identifiers, each its own, and no reserved words") {
  CHECK_THROWS_WITH(Cell({"n", {}, {}, {}}),
                    "a neuron has at least one input: the number of steps is that of its inputs");
  CHECK_THROWS_WITH(Cell({"n", {"x"}, {"x"}, {}}), "two arguments are called x");
  CHECK_THROWS_WITH(Cell({"n", {"x"}, {}, {"x"}}), "two arguments are called x");
  CHECK_THROWS_WITH(Cell({"n", {"return"}, {}, {}}), "\"return\" is a reserved word, and cannot name an input");
  CHECK_THROWS_WITH(Cell({"n", {"x"}, {"2v"}, {}}),
                    "\"2v\" cannot name a state: a name is a letter or _, then letters, digits and _");
  CHECK_THROWS_WITH(Cell({"n", {"x"}, {}, {""}}), test::has_text("\"\" cannot name a parameter"));
  CHECK_THROWS_WITH(Cell({"a b", {"x"}, {}, {}}), test::has_text("\"a b\" cannot name a neuron"));
  CHECK_THROWS_WITH(Cell({std::string(65, 'n'), {"x"}, {}, {}}),
                    "a name has at most 64 characters; that of a neuron has 65");
  CHECK_NOTHROW(Cell({"exp", {"sin"}, {"_"}, {"atan"}}));  // names of functions are allowed: a call has parentheses
  CHECK_THROWS_WITH(Cell({"n", std::vector<std::string>(257, "x"), {}, {}}),
                    "a neuron has at most 256 inputs, states and parameters together, not 257");
}

TEST_CASE("a cell has outputs, and a next state for each state, and all are numbers") {
  Cell cell({"n", {"x"}, {"v", "w"}, {}});
  const Id x = cell.input(0);
  const Id c = cell.graph().make(Op::less, {x, x});
  CHECK_THROWS_WITH(cell.finish({}, std::array{x, x}), "a neuron has 1 to 256 outputs, not 0");
  CHECK_THROWS_WITH(cell.finish(std::vector<Id>(257, x), std::array{x, x}), "a neuron has 1 to 256 outputs, not 257");
  CHECK_THROWS_WITH(cell.finish(std::array{x}, std::array{x}), "1 next state for a neuron with 2 (x; v, w; )");
  CHECK_THROWS_WITH(cell.finish(std::array{c}, std::array{x, x}),
                    "an output is a number, not a boolean; write where(condition, 1, 0)");
}

}  // namespace spikeforge::graph
