// Compares the derivative of every operation with finite differences if the operation is smooth, and with the gradient
// of autograd in torch 2.11 at kinks and outside the domain.
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"

#include "tests/autodiff/linearised.h"
#include "tests/catch.h"
#include "tests/graph/bits.h"

#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Graph;
using graph::Op;

constexpr double inf = HUGE_VAL;
const double nan = std::nan("");

Graph single(Op op) {
  Graph g;
  std::vector<graph::Id> operands;
  for (int i = 0; i < info(op).arity; ++i) operands.push_back(g.argument(std::string(1, char('a' + i))));
  g.add_result(g.make(op, operands, graph::surrogate::atan(2)));
  return g;
}

std::vector<double> gradients(Op op, std::vector<double> x, double upstream = 1) {
  x.push_back(upstream);
  return graph::evaluate<double>(vjp(single(op)), x);
}

bool is_differentiable(Op op) {
  const graph::OpInfo& known = info(op);
  if (known.form == graph::Form::leaf || known.result != graph::Kind::number || op == Op::surrogate_gradient)
    return false;
  for (int i = 0; i < known.arity; ++i)
    if (known.operands[static_cast<std::size_t>(i)] != graph::Kind::number) return false;
  return true;
}

}  // namespace

TEST_CASE("the derivative of every operation is its finite difference") {
  int checked = 0;
  const auto check = [&](Op op) {
    if (!is_differentiable(op)) return;
    const Graph g = single(op);
    int sure = 0;
    for (const double a : {-2.3, -.7, -.21, .13, .48, .92, 1.7, 25.3})
      for (const double b : {-1.9, -.3, .61, 1.4}) {
        for (const double c : {-.8, .35, 2.6}) {
          std::vector<double> at = {a, b, c};
          at.resize(static_cast<std::size_t>(info(op).arity));
          const std::vector<double> actual = gradients(op, at, -1.5);
          const test::Linearised around(g, at);
          const double upstream[] = {-1.5};
          for (std::size_t i = 0; i < at.size(); ++i) {
            const auto [expected, is_sure] = around.slope(i, upstream);
            if (!is_sure) continue;
            ++sure;
            INFO(info(op).name << " at " << a << ", " << b << ", " << c << ", by operand " << i + 1);
            REQUIRE(std::abs(actual[i] - expected) <= 2e-8 * std::max(1., std::abs(expected)));
          }
        }
      }
    INFO(info(op).name);
    CHECK(sure >= 12);
    ++checked;
  };
#define SPIKEFORGE_DRAW(...)
#define SPIKEFORGE_OP(name, ...) check(Op::name);
#include "csrc/graph/ops.def"
  CHECK(checked == 51);
}

TEST_CASE("at kinks and beyond, derivatives are those of torch") {
  struct Fact {
    Op op;
    std::vector<double> x, expected;
  };
  const std::vector<Fact> facts = {
      {Op::abs, {0}, {0}},
      {Op::abs, {nan}, {0}},
      {Op::sign, {1}, {0}},
      {Op::floor, {1}, {0}},
      {Op::ceil, {1.5}, {0}},
      {Op::round, {1.5}, {0}},
      {Op::trunc, {-1.5}, {0}},
      {Op::minimum, {1, 1}, {.5, .5}},
      {Op::minimum, {1, 2}, {1, 0}},
      {Op::minimum, {nan, 1}, {1, 1}},
      {Op::minimum, {1, nan}, {1, 1}},
      {Op::maximum, {1, 1}, {.5, .5}},
      {Op::maximum, {2, 1}, {1, 0}},
      {Op::maximum, {nan, 1}, {1, 1}},
      {Op::relu, {0}, {0}},
      {Op::relu, {nan}, {1}},
      {Op::clamp, {1, 1, 2}, {1, 0, 0}},
      {Op::clamp, {2, 1, 2}, {1, 0, 0}},
      {Op::clamp, {0, 1, 2}, {0, 1, 0}},
      {Op::clamp, {3, 1, 2}, {0, 0, 1}},
      {Op::clamp, {1, 3, 2}, {0, 0, 1}},
      {Op::clamp, {5, 3, 2}, {0, 0, 1}},
      {Op::clamp, {nan, 1, 2}, {0, 0, 0}},
      {Op::clamp, {1, nan, 2}, {0, 0, 0}},
      {Op::clamp, {3, 2, 2}, {0, 0, 1}},
      {Op::clamp, {1, 2, 2}, {0, 1, 0}},  // torch: 0, 0, 0
      {Op::pow, {0, 0}, {0, 0}},
      {Op::pow, {0, 2}, {0, 0}},
      {Op::pow, {0, 1}, {1, 0}},
      {Op::pow, {0, .5}, {inf, 0}},
      {Op::pow, {-2, 3}, {12, nan}},
      {Op::pow, {2, 0}, {0, .693147180559945309}},
      {Op::pow, {0, -1}, {-inf, -inf}},
      {Op::atan2, {0, 0}, {0, 0}},
      {Op::atan2, {1, 0}, {0, -1}},
      {Op::fmod, {5.5, 2}, {1, -2}},
      {Op::fmod, {-5.5, 2}, {1, 2}},
      {Op::remainder, {5.5, 2}, {1, -2}},
      {Op::remainder, {-5.5, 2}, {1, 3}},
      {Op::remainder, {5.5, -2}, {1, 3}},
      {Op::leaky_relu, {0, .01}, {.01, 0}},
      {Op::elu, {0, 1}, {1, 0}},
      {Op::softplus, {20.5}, {1}},
      {Op::softplus, {20}, {.999999997938846}},
      {Op::softplus, {800}, {1}},
      {Op::sqrt, {0}, {inf}},
      {Op::log, {0}, {inf}},
      {Op::asin, {1}, {inf}},
  };
  for (const Fact& fact : facts) {
    const std::vector<double> actual = gradients(fact.op, fact.x);
    for (std::size_t i = 0; i < fact.x.size(); ++i) {
      INFO(info(fact.op).name << "(" << fact.x[0] << ", ...) by operand " << i + 1 << ": " << actual[i] << ", expected "
                              << fact.expected[i]);
      CHECK((test::same_bits(actual[i] + 0., fact.expected[i]) || std::abs(actual[i] - fact.expected[i]) < 1e-14));
    }
  }
}

TEST_CASE("a constant exponent is the power rule, without a logarithm") {
  for (const double exponent : {0., 1., 2., 3., .5, -1., -2.5}) {
    Graph g;
    g.add_result(g.make(Op::pow, {g.argument("x"), g.constant(exponent)}));
    const Graph derivative = vjp(g);
    for (const graph::Node& node : derivative.nodes()) CHECK(node.op != Op::log);
    const double arguments[] = {1.7, 2};
    CHECK(graph::evaluate<double>(derivative, arguments)[0] ==
          test::Approx(2 * exponent * std::pow(1.7, exponent - 1)).epsilon(1e-14));
  }
  Graph g;
  g.add_result(g.make(Op::pow, {g.argument("x"), g.constant(2)}));
  const double at_zero[] = {0, 1};
  CHECK(graph::evaluate<double>(vjp(g), at_zero)[0] == 0);
}

}  // namespace spikeforge::autodiff
