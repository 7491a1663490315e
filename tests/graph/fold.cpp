#include "csrc/graph/internal/copy.h"
#include "csrc/graph/internal/evaluate.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"

#include <vector>

namespace spikeforge::graph {
namespace {

using test::same_bits;

// Arguments, constants, and nodes whose operands a rule may inspect: numbers and booleans.
struct Leaves {
  Graph graph;
  std::vector<Id> numbers, booleans;

  Leaves() {
    const Id x = graph.argument("x"), y = graph.argument("y");
    const Id c = graph.make(Op::less, {x, y}), d = graph.make(Op::greater, {x, y});
    numbers = {x, y, graph.make(Op::neg, {x}), graph.make(Op::abs, {x}), graph.make(Op::detach, {x})};
    for (const double number : {0., -0., 1., -1., .1, 1e-60, 1 + 1e-12, HUGE_VAL, std::nan("")})
      numbers.push_back(graph.constant(number));
    booleans = {c, d, graph.make(Op::logical_not, {c}), graph.truth(true), graph.truth(false)};
  }
};

template <class F> void check_all(Op op, const Leaves& leaves) {
  const OpInfo& known = info(op);
  const auto choices = [&](int i) -> const std::vector<Id>& {
    static const std::vector<Id> one = {0};
    if (i >= known.arity) return one;
    return known.operands[static_cast<std::size_t>(i)] == Kind::number ? leaves.numbers : leaves.booleans;
  };
  for (const Id a : choices(0))
    for (const Id b : choices(1))
      for (const Id c : choices(2)) {
        Graph graph = leaves.graph;
        const std::vector<Id> all = {a, b, c};
        const std::span<const Id> operands(all.data(), static_cast<std::size_t>(known.arity));
        const Surrogate surrogate = surrogate::atan(2);
        const Id made = graph.make(op, operands, surrogate);
        Node plain{.op = op, .surrogate = surrogate};
        for (const F x : test::hard_numbers<F>())
          for (const F y : {F(-1), F(0), F(.1), F(HUGE_VAL)}) {
            const std::vector<F> arguments = {x, y};
            const std::vector<F> values = evaluate_nodes<F>(graph, arguments);
            std::vector<F> given;
            for (const Id operand : operands) given.push_back(values[operand]);
            const F expected = evaluate_node<F>(plain, given);
            if (same_bits(values[made], expected)) continue;
            FAIL(known.name << " of nodes " << a << ", " << b << ", " << c << " at x = " << x << ", y = " << y
                            << " became " << values[made] << ", expected " << expected);
          }
      }
}

}  // namespace

TEST_CASE("folding and value numbering keep every bit of every operation, in float32 and float64") {
  const Leaves leaves;
#define SPIKEFORGE_LEAF(name, result)
#define SPIKEFORGE_DRAW(...)
#define SPIKEFORGE_OP(name, ...)      \
  check_all<float>(Op::name, leaves); \
  check_all<double>(Op::name, leaves);
#include "csrc/graph/ops.def"
}

TEST_CASE("a fold that keeps the bits is made") {
  Graph g;
  const Id x = g.argument("x"), y = g.argument("y");
  const Id c = g.make(Op::less, {x, y});
  const Id one = g.constant(1), zero = g.constant(0);
  CHECK(g.make(Op::neg, {g.make(Op::neg, {x})}) == x);
  CHECK(g.make(Op::neg, {one}) == g.constant(-1));
  CHECK(g.make(Op::neg, {zero}) == g.constant(-0.));
  CHECK(g.make(Op::abs, {g.constant(-3)}) == g.constant(3));
  CHECK(g.make(Op::add, {x, g.make(Op::neg, {y})}) == g.make(Op::subtract, {x, y}));
  CHECK(g.make(Op::add, {g.make(Op::neg, {x}), y}) == g.make(Op::subtract, {y, x}));
  CHECK(g.make(Op::subtract, {x, g.make(Op::neg, {y})}) == g.make(Op::add, {x, y}));
  CHECK(g.make(Op::multiply, {x, one}) == x);
  CHECK(g.make(Op::multiply, {one, x}) == x);
  CHECK(g.make(Op::divide, {x, one}) == x);
  CHECK(g.make(Op::subtract, {x, zero}) == x);
  CHECK(g.make(Op::where, {c, x, x}) == x);
  CHECK(g.make(Op::where, {g.truth(false), x, y}) == y);
  CHECK(g.make(Op::where, {g.make(Op::logical_not, {c}), x, y}) == g.make(Op::where, {c, y, x}));
  CHECK(g.make(Op::logical_and, {c, g.truth(true)}) == c);
  CHECK(g.make(Op::logical_or, {g.truth(true), c}) == g.truth(true));
  CHECK(g.make(Op::detach, {g.make(Op::detach, {x})}) == g.make(Op::detach, {x}));
  CHECK(g.make(Op::surrogate_gradient, {x}, surrogate::none()) == zero);
}

TEST_CASE("a fold that changes bits in some type is not made") {
  Graph g;
  const Id x = g.argument("x");
  const Id zero = g.constant(0);
  CHECK(zero != g.constant(-0.));
  CHECK(g.make(Op::add, {x, zero}) != x);                   // -0 + 0 is 0
  CHECK(g.make(Op::subtract, {x, g.constant(-0.)}) != x);   // the same
  CHECK(g.is(g.make(Op::subtract, {x, x}), Op::subtract));  // infinity
  CHECK(g.is(g.make(Op::multiply, {x, zero}), Op::multiply));
  CHECK(g.is(g.make(Op::add, {g.constant(.1), g.constant(.2)}), Op::add));          // another sum in float32
  CHECK(g.is(g.make(Op::less, {g.constant(1), g.constant(1 + 1e-12)}), Op::less));  // equal in float32
}

TEST_CASE("the same expression is one node, and sums and products either way round") {
  Graph g;
  const Id x = g.argument("x"), y = g.argument("y");
  CHECK(g.make(Op::add, {x, y}) == g.make(Op::add, {y, x}));
  CHECK(g.make(Op::multiply, {x, y}) == g.make(Op::multiply, {y, x}));
  CHECK(g.make(Op::subtract, {x, y}) != g.make(Op::subtract, {y, x}));
  CHECK(g.make(Op::minimum, {x, y}) != g.make(Op::minimum, {y, x}));  // of 0 and -0, the second
  CHECK(g.make(Op::spike, {x}, surrogate::atan(2)) == g.make(Op::spike, {x}, surrogate::atan()));
  CHECK(g.make(Op::spike, {x}, surrogate::atan(2)) != g.make(Op::spike, {x}, surrogate::atan(3)));
  CHECK(g.make(Op::spike, {x}, surrogate::atan(2)) != g.make(Op::spike, {x}, surrogate::sigmoid(2)));
  CHECK(g.constant(std::nan("")) == g.constant(-std::nan("1")));
}

TEST_CASE("operands of the wrong kind or number, and too many nodes, are refused in words") {
  Graph g(5);
  const Id x = g.argument("x");
  const Id c = g.make(Op::less, {x, g.constant(1)});
  CHECK_THROWS_WITH(g.make(Op::add, {x, c}),
                    "+: operand 2 must be a number, but is a boolean; write "
                    "where(condition, 1, 0) for one");
  CHECK_THROWS_WITH(g.make(Op::where, {x, x, x}),
                    "where: operand 1 must be a boolean, but is a number; write a "
                    "comparison, such as x > 0");
  CHECK_THROWS_WITH(g.make(Op::clamp, {x}), "clamp takes 3 operands, but 1 is given");
  CHECK_THROWS_WITH(g.make(Op::exp, {x, x}), "exp takes 1 operand, but 2 are given");
  CHECK_THROWS_WITH(g.make(Op::exp, {77}), "exp: operand 1 is not a node");
  CHECK_THROWS_WITH(g.make(Op::constant, {}), "constant has no operands");
  CHECK_THROWS_WITH(g.argument("y"), "an argument is made before all other nodes");
  CHECK_THROWS_WITH(g.add_result(c), "a result must be a number, not a boolean");
  g.constant(2);
  g.constant(3);
  CHECK_THROWS_WITH(g.constant(4), "a neuron or a rule has at most 5 operations, arguments and constants included");
}

}  // namespace spikeforge::graph
