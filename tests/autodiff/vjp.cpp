#include "csrc/autodiff/vjp.h"
#include "csrc/graph/errors.h"
#include "csrc/graph/internal/dependence.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/autodiff/linearised.h"
#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <cmath>
#include <string>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;
using graph::Graph;
using graph::Id;
using graph::parse;

std::vector<double> gradients(const Graph& primal, std::vector<double> arguments, const std::vector<double>& upstream) {
  arguments.insert(arguments.end(), upstream.begin(), upstream.end());
  return graph::evaluate<double>(vjp(primal), arguments);
}

struct Tally {
  int checked = 0, unsure = 0;
};

// Returns a description of the fault, or an empty string if the gradients are correct.
std::string complaint(const Cell& cell, std::uint64_t seed, Tally& tally) {
  const std::vector<double> at = test::random_arguments(cell.graph(), seed);
  std::vector<double> upstream;
  test::Dice dice(seed + 17);
  for (std::size_t k = 0; k < cell.graph().results().size(); ++k) upstream.push_back(dice.uniform(-1, 1));
  const std::vector<double> actual = gradients(cell.graph(), at, upstream);
  const test::Linearised around(cell.graph(), at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto [expected, is_sure] = around.slope(i, upstream);
    if (!is_sure) {
      ++tally.unsure;
      continue;
    }
    ++tally.checked;
    if (std::abs(actual[i] - expected) > 1e-6 * std::max(1., std::abs(expected)))
      return "the gradient by " + cell.graph().name(static_cast<Id>(i)) + " is " + std::to_string(actual[i]) +
             ", expected " + std::to_string(expected);
  }
  return "";
}

std::string printed_vjp(const std::string& equations) {
  return print(vjp(parse("neuron n(x; v; p) { " + equations + " }").graph()), "vjp");
}

// The derivative of the first output with respect to x, at these x, v, p.
double gradient_at(const std::string& output, double x, double v = .5, double p = 2) {
  const Cell cell = parse("neuron n(x;; v, p) { return " + output + " }");
  return gradients(cell.graph(), {x, v, p}, {1})[0];
}

}  // namespace

TEST_CASE("the gradients of random cells are their finite differences") {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const Cell cell = test::random_cell(seed, {.operations = 6 + static_cast<int>(seed % 24)});
    if (complaint(cell, seed, tally).empty()) continue;
    const Cell small = test::shrunk(cell, [&](const Cell& c) {
      try {
        return !complaint(c, seed, tally).empty();
      } catch (const graph::GraphError&) {  // the smaller cell no longer has a detach
        return false;
      }
    });
    FAIL("seed " << seed << ": " << complaint(small, seed, tally) << "\n"
                 << print(small) << print(vjp(small.graph()), "vjp"));
  }
  const double share = double(tally.unsure) / (tally.checked + tally.unsure);
  WARN(tally.checked << " gradients checked, " << tally.unsure << " (" << share * 100
                     << " %) at a kink, infinite or too steep to difference");
  CHECK(share < .01);
}

TEST_CASE("a vjp is a sound graph in plain arithmetic, of which every node is used") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Graph g = vjp(test::random_cell(seed).graph());
    INFO("seed " << seed);
    verify(g);
    const std::vector<bool> live = live_nodes(g);
    for (Id id = static_cast<Id>(g.argument_count()); id < g.size(); ++id) {
      REQUIRE(live[id]);
      for (const graph::Op gone :
           {graph::Op::spike, graph::Op::spike_strict, graph::Op::select, graph::Op::detach, graph::Op::add_gradient})
        REQUIRE(!g.is(id, gone));
    }
  }
}

TEST_CASE("the vjp of a LIF is the published derivation") {
  const Cell lif = parse(R"(neuron lif(x; v; decay) {
    h = v + decay * (x - v)
    s = spike(h - 1, atan(2))
    return s
    v' = select(s, 0, h)
  })");
  CHECK(print(vjp(lif.graph()), "vjp") == R"(graph vjp(x, v, decay, grad0, grad1) {
  t1 = x - v
  h = v + decay * t1
  t2 = h - 1
  t3 = where(t2 >= 0, 0, grad1) + (grad0 + grad1 * (0 - h)) * surrogate_gradient(t2, atan(2))
  t4 = t3 * decay
  return t4, t3 - t4, t3 * t1
}
)");
}

TEST_CASE("gradients that are always zero are known to be") {
  const Cell cell = parse(R"(neuron n(x, unused; v, w; p, q) {
    s = spike(v + x - p, none)
    return s, v
    v' = v * p
    w' = detach(w) + floor(q)
  })");
  const Graph g = vjp(cell.graph());
  std::vector<std::string> zero;
  for (std::size_t i = 0; i < g.results().size(); ++i)
    if (is_zero(g, i)) zero.push_back(g.name(static_cast<Id>(i)));
  CHECK(zero == std::vector<std::string>{"x", "unused", "w", "q"});
  // The upstream gradients on which each gradient depends: grad1 is that of the output v, grad2 that of v'.
  const graph::Dependence depends(g);
  const std::size_t grads = cell.graph().argument_count();
  const Id grad_v = g.results()[cell.state(0)], grad_p = g.results()[cell.param(0)];
  CHECK(depends.on(grad_v, grads + 1));
  CHECK(depends.on(grad_v, grads + 2));
  CHECK_FALSE(depends.on(grad_v, grads + 0));
  CHECK_FALSE(depends.on(grad_p, grads + 1));
  CHECK_FALSE(depends.on(grad_v, grads + 3));
}

TEST_CASE("a branch that is not taken passes no NaN on") {
  CHECK(gradient_at("where(x > 0, sqrt(x), 0)", 0) == 0);  // not 0 times the infinite derivative of sqrt
  CHECK(gradient_at("where(x > 0, log(x), 7 * x)", 0) == 7);
  CHECK(gradient_at("where(x != 0, sin(x) / x, 1)", 0) == 0);
  CHECK(gradient_at("where(x > 0, exp(1000 * x), x)", -1) == 1);
  CHECK(gradient_at("where(x < 1, x, exp(1000 * x) - exp(1000 * x))", .5) == 1);
  CHECK(gradient_at("relu(x) * sqrt(relu(x))", -1) == 0);
  CHECK(gradient_at("minimum(sqrt(x), v)", 0, -1) == 0);
  CHECK(gradient_at("clamp(sqrt(x), 1, 2)", 0) == 0);
  // Both outputs take the same branch.
  CHECK(gradient_at("where(x > 0, sqrt(x), 0) + 2 * where(x > 0, sqrt(x), 1)", 0) == 0);
  CHECK(std::isinf(gradient_at("sqrt(x)", 0)));  // the branch is taken, so its gradient is infinite
}

TEST_CASE("a spike is differentiated by its surrogate, and a reset through the spike unless it is detached") {
  const double pi = std::acos(-1.), u = .3;
  const double slope = 1 / (1 + std::pow(pi * u, 2));  // atan(2)
  const std::string spike = "spike(x, atan(2))";
  CHECK(gradient_at(spike, u) == test::Approx(slope).epsilon(1e-14));
  CHECK(gradient_at("spike_strict(x, atan(2))", u) == test::Approx(slope).epsilon(1e-14));
  CHECK(gradient_at("select(" + spike + ", v, p * x)", u) == test::Approx((.5 - 2 * u) * slope));
  CHECK(gradient_at("select(" + spike + ", v, p * x)", -u) == test::Approx((.5 + 2 * u) * slope + 2));
  CHECK(gradient_at("select(detach(" + spike + "), v, p * x)", u) == 0);
  CHECK(gradient_at("select(detach(" + spike + "), v, p * x)", -u) == 2);
  CHECK(gradient_at("spike(x, none)", u) == 0);
}

TEST_CASE("custom gradients are as they are said to be") {
  CHECK(gradient_at("custom_gradient(round(x), x, 1)", 2.4) == 1);
  CHECK(gradient_at("custom_gradient(x * x, x, 5)", 3) == 5);
  CHECK(gradient_at("add_gradient(x * x, x, 5)", 3) == 11);
  CHECK(gradient_at("custom_gradient(x * x, v, 5)", 3) == 0);
  CHECK(gradient_at("custom_gradient(x * x, square(x), 5)", 3) == 30);
  CHECK(gradient_at("add_gradient(spike(x, none), x, p * exp(-abs(x)))", 0) == 2);  // a custom surrogate
  CHECK(gradient_at("add_gradient(detach(x), x, square(x))", 3) == 9);  // its derivative is not differentiated
  CHECK(gradient_at("add_gradient(spike(x, none), x, 0.5 * surrogate_gradient(x, rect(1)))", .1) == .5);
}

TEST_CASE("a surrogate's derivative has one of its own, unless it is detached") {
  const double pi = std::acos(-1.), u = .3;
  const double slope = -2 * pi * pi * u / std::pow(1 + std::pow(pi * u, 2), 2);  // of 1 / (1 + (π u)²)
  CHECK(gradient_at("surrogate_gradient(x, atan(2))", u) == test::Approx(slope).epsilon(1e-14));
  CHECK(gradient_at("surrogate_gradient(x, none)", u) == 0);
  CHECK(gradient_at("detach(surrogate_gradient(x, atan(2)))", u) == 0);
}

TEST_CASE("names of gradients give way to names of the neuron") {
  CHECK(printed_vjp("grad0 = exp(x); return grad0 * x; v' = v") ==
        R"(graph vjp(x, v, p, grad0_, grad1) {
  grad0 = exp(x)
  return grad0_ * grad0 + grad0_ * x * grad0, grad1, 0
}
)");
}

}  // namespace spikeforge::autodiff
