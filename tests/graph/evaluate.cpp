// Compares the evaluator with results of torch 2.11 (torch.<name>, torch.nn.functional.<name>) at points where
// functions of the same name differ between libraries.
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/errors.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"

#include <vector>

namespace spikeforge::graph {
namespace {

constexpr double inf = HUGE_VAL;
const double nan = std::nan("");

struct Fact {
  Op op;
  std::vector<double> x;
  double expected;
};

void check(const std::vector<Fact>& facts, double bound = 0) {
  for (const Fact& fact : facts) {
    const double value = evaluate_node<double>({.op = fact.op}, fact.x);
    const std::vector<float> x32(fact.x.begin(), fact.x.end());
    const float value32 = evaluate_node<float>({.op = fact.op}, x32);
    INFO(info(fact.op).name << "(" << fact.x[0] << ", ...) = " << value << ", " << value32 << " in float32; expected "
                            << fact.expected);
    if (bound == 0) {
      CHECK(test::same_bits(value, fact.expected));
      CHECK(test::same_bits(value32, static_cast<float>(fact.expected)));
    } else {
      CHECK(std::abs(value - fact.expected) <= bound * std::abs(fact.expected));
      CHECK(std::abs(value32 - fact.expected) <= 1e-6 * std::abs(fact.expected));
    }
  }
}

}  // namespace

TEST_CASE("NaN is passed on by minimum, maximum and clamp, whichever operand it is") {
  check({{Op::minimum, {nan, 1}, nan},
         {Op::minimum, {1, nan}, nan},
         {Op::maximum, {nan, 1}, nan},
         {Op::maximum, {1, nan}, nan},
         {Op::clamp, {nan, 0, 1}, nan},
         {Op::clamp, {1, nan, 2}, nan},
         {Op::clamp, {1, 0, nan}, nan},
         {Op::relu, {nan}, nan},
         {Op::leaky_relu, {nan, .01}, nan},
         {Op::elu, {nan, 1}, nan}});
}

TEST_CASE("sign and comparisons take NaN for neither") {
  check({{Op::sign, {nan}, 0},
         {Op::equal, {nan, nan}, 0},
         {Op::not_equal, {nan, nan}, 1},
         {Op::less, {nan, 1}, 0},
         {Op::greater_equal, {nan, 1}, 0}});
}

TEST_CASE("halves are rounded to even") {
  check({{Op::round, {.5}, 0},
         {Op::round, {1.5}, 2},
         {Op::round, {2.5}, 2},
         {Op::round, {-.5}, -0.},
         {Op::round, {-1.5}, -2},
         {Op::round, {-2.5}, -2},
         {Op::round, {-.4}, -0.}});
}

TEST_CASE("the sign of zero is torch's") {
  check({{Op::sign, {-0.}, 0},
         {Op::relu, {-0.}, -0.},
         {Op::relu, {-1}, 0},
         {Op::minimum, {-0., 0}, 0},
         {Op::minimum, {0, -0.}, -0.},
         {Op::maximum, {0, -0.}, -0.},
         {Op::maximum, {-0., 0}, 0},
         {Op::clamp, {-0., 0, 1}, -0.},
         {Op::clamp, {0, -0., 1}, 0},
         {Op::floor, {-0.}, -0.},
         {Op::trunc, {-.5}, -0.},
         {Op::ceil, {-.5}, -0.},
         {Op::abs, {-0.}, 0},
         {Op::reciprocal, {-0.}, -inf},
         {Op::rsqrt, {-0.}, -inf},
         {Op::sqrt, {-0.}, -0.},
         {Op::elu, {-0., 1}, -0.},
         {Op::elu, {0, -1}, 0},
         {Op::leaky_relu, {0, -1}, -0.},
         {Op::silu, {-0.}, -0.},
         {Op::gelu, {-0.}, -0.},
         {Op::atan2, {-0., 0}, -0.}});
}

TEST_CASE("fmod has the sign of its first operand and remainder that of its second") {
  check({{Op::fmod, {5.5, 2}, 1.5},
         {Op::fmod, {-5.5, 2}, -1.5},
         {Op::fmod, {5.5, -2}, 1.5},
         {Op::fmod, {-4, 2}, -0.},
         {Op::fmod, {1, 0}, nan},
         {Op::fmod, {inf, 2}, nan},
         {Op::fmod, {-5, inf}, -5},
         {Op::remainder, {5.5, 2}, 1.5},
         {Op::remainder, {-5.5, 2}, .5},
         {Op::remainder, {5.5, -2}, -.5},
         {Op::remainder, {-5.5, -2}, -1.5},
         {Op::remainder, {-4, 2}, -0.},
         {Op::remainder, {4, -2}, 0},
         {Op::remainder, {-5, inf}, inf},
         {Op::remainder, {5, -inf}, -inf},
         {Op::remainder, {1, 0}, nan},
         {Op::remainder, {-3, 2}, 1},
         {Op::remainder, {3, -2}, -1}});
}

TEST_CASE("clamp with bounds the wrong way round gives the upper one, and spikes fire at 0 or above it") {
  check({{Op::clamp, {1, 3, 2}, 2},     {Op::clamp, {5, 3, 2}, 2},
         {Op::clamp, {2.5, 3, 2}, 2},   {Op::clamp, {-1, 0, 1}, 0},
         {Op::spike, {0}, 1},           {Op::spike, {-0.}, 1},
         {Op::spike_strict, {0}, 0},    {Op::spike, {nan}, 0},
         {Op::spike_strict, {nan}, 0},  {Op::spike_strict, {5e-324 * 0 + 1}, 1},
         {Op::select, {1, 2, 3}, 2},    {Op::select, {0, 2, 3}, 3},
         {Op::select, {nan, 2, 3}, 3},  {Op::select, {1, 0, inf}, 0},
         {Op::where, {0, nan, 3}, 3},   {Op::pow, {1, nan}, 1},
         {Op::pow, {0, 0}, 1},          {Op::lerp, {1, 2, .25}, 1.25},
         {Op::lerp, {1, 2, .75}, 1.75}, {Op::lerp, {inf, 1, 1}, nan}});
}

TEST_CASE("functions keep to their definitions far out") {
  check({{Op::softplus, {25}, 25},
         {Op::softplus, {-inf}, 0},
         {Op::sigmoid, {-inf}, 0},
         {Op::sigmoid, {inf}, 1},
         {Op::silu, {-inf}, nan},
         {Op::silu, {-1000}, -0.},
         {Op::gelu, {-inf}, nan},
         {Op::gelu, {inf}, inf},
         {Op::elu, {-inf, 1}, -1},
         {Op::leaky_relu, {-2, .5}, -1},
         {Op::detach, {inf}, inf},
         {Op::add_gradient, {1, nan, nan}, 1}});
}

TEST_CASE("activations are their published formulas") {
  check({{Op::sigmoid, {1.5}, .817574476193643659},   {Op::softplus, {1.5}, 1.70141327798275248},
         {Op::gelu, {1.5}, 1.399789198096713},        {Op::silu, {1.5}, 1.22636171429046549},
         {Op::elu, {-1.5, 2}, -1.55373967970314038},  {Op::erf, {.5}, .520499877813046538},
         {Op::rsqrt, {2.}, .707106781186547524},      {Op::expm1, {1e-3}, .00100050016670834166},
         {Op::log1p, {1e-3}, 9.99500333083533167e-4}, {Op::log2, {10.}, 3.32192809488736235},
         {Op::exp2, {1.5}, 2.82842712474619010},      {Op::atan2, {3, -2}, 2.15879893034246437},
         {Op::tan, {.5}, .546302489843790513},        {Op::sinh, {.5}, .521095305493747362},
         {Op::cosh, {.5}, 1.12762596520638079},       {Op::tanh, {.5}, .462117157260009758},
         {Op::asin, {.5}, .523598775598298873},       {Op::acos, {.25}, 1.31811607165281797},
         {Op::atan, {.5}, .463647609000806116},       {Op::pow, {2.5, 1.5}, 3.95284707521047416}},
        4e-16);
}

TEST_CASE("constants are rounded to the type computed in, and a result may be an argument") {
  Graph g;
  const Id x = g.argument("x");
  g.add_result(g.make(Op::add, {g.constant(.1), g.constant(.2)}));
  g.add_result(x);
  const float x32[] = {7};
  const double x64[] = {7};
  CHECK(evaluate<float>(g, x32) == std::vector<float>{.1f + .2f, 7});
  CHECK(evaluate<double>(g, x64) == std::vector<double>{.1 + .2, 7});
  CHECK_THROWS_WITH(evaluate<float>(g, {}), "a graph of 1 arguments is given 0");
}

}  // namespace spikeforge::graph
