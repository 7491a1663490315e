#include "csrc/autodiff/stages.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/internal/verify.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"
#include "tests/graph/numbers.h"
#include "tests/graph/random_graph.h"

#include <cmath>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;
using graph::Graph;

using test::joined;
using test::Numbers;

template <class F> Numbers<F> slice(const Numbers<F>& all, std::size_t first, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TEST_CASE("the stages of an adaptive neuron") {
  const Stages stages = stages_of(graph::parse(R"(neuron alif(x; v, a; tau) {
    decay = 1 / tau
    h = v + (x - v) * decay
    s = spike(h - (1 + a), atan(2))
    return s
    v' = select(s, 0, h)
    a' = 0.9 * a + s
  })"));
  CHECK(print(stages.prologue, "prologue") == "graph prologue(tau) {\n  decay = 1 / tau\n  return decay\n}\n");
  CHECK(print(stages.step, "step") == R"(graph step(x, v, a, decay) {
  h = v + (x - v) * decay
  t1 = h - (1 + a) >= 0
  s = where(t1, 1, 0)
  return s, where(t1, 0, h), 0.9 * a + s
}
)");
  CHECK(print(stages.backward, "backward") == R"(graph backward(x, v, a, decay, grad0, grad1, grad2) {
  t1 = x - v
  h = v + t1 * decay
  t2 = h - (1 + a)
  t3 = surrogate_gradient(t2, atan(2))
  t4 = grad1 * ((0 - h) * t3) + (grad2 * t3 + grad0 * t3)
  t5 = t4 + where(t2 >= 0, 0, grad1)
  t6 = t5 * decay
  return t6, t5 - t6, grad2 * 0.9 - t4, t5 * t1
}
)");
  CHECK(print(stages.epilogue, "epilogue") == R"(graph epilogue(tau, grad0) {
  decay = 1 / tau
  return -(grad0 * decay * decay)
}
)");
  CHECK(stages.factors == 1);
  CHECK(print(state_adjoint_map(stages), "map") == R"(graph map(x, v, a, decay, grad0, grad1, grad2) {
  h = v + (x - v) * decay
  t1 = h - (1 + a)
  t2 = surrogate_gradient(t1, atan(2))
  t3 = (0 - h) * t2
  t4 = grad0 * t2
  t5 = t3 + where(t1 >= 0, 0, 1)
  return t5 - t5 * decay, t2 - t2 * decay, -t3, 0.9 - t2, t4 - t4 * decay, -t4
}
)");
}

TEST_CASE("parameters are used as factors if there would be more factors than parameters") {
  const Stages stages = stages_of(graph::parse("neuron n(x;; p) { return sin(p) * x + cos(p) * square(x) }"));
  CHECK(stages.factors == 1);
  CHECK(print(stages.prologue, "prologue") == "graph prologue(p) {\n  t1 = sin(p)\n  return t1, cos(p), -t1\n}\n");
  CHECK(print(stages.epilogue, "epilogue") == "graph epilogue(p, grad0) {\n  return grad0\n}\n");
}

TEST_CASE("constants and detached values of parameters are hoisted, and their gradients are 0") {
  const Stages stages =
      stages_of(graph::parse("neuron n(x;; p) { return (1 / 3) * x + detach(exp(p)) * x + sin(p) * x }"));
  CHECK(stages.factors == 3);
  CHECK(print(stages.backward, "backward") == R"(graph backward(x, k0, k1, k2, grad0) {
  return grad0 * k2 + grad0 * k1 + grad0 * k0, 0, 0, grad0 * x
}
)");
}

TEST_CASE("run one after another, the stages give the step to the bit and its gradients") {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Cell cell = test::random_cell(seed);
    const Stages stages = stages_of(cell);
    for (const Graph* g : {&stages.prologue, &stages.step, &stages.backward, &stages.epilogue}) verify(*g);
    const std::size_t given = stages.inputs + stages.states, results = stages.outputs + stages.states;
    INFO("seed " << seed << "\n"
                 << print(cell) << print(stages.prologue, "prologue") << print(stages.step, "step")
                 << print(stages.backward, "backward") << print(stages.epilogue, "epilogue"));
    std::size_t sums = 0;
    for (std::size_t k = 0; k < stages.factors; ++k) sums += !is_zero(stages.backward, given + k);
    REQUIRE(sums <= stages.params);

    const auto check_step = [&](auto zero) {
      using F = decltype(zero);
      const std::vector<double> at = test::random_arguments(cell.graph(), seed);
      const Numbers<F> all(at.begin(), at.end());
      const Numbers<F> hoisted = graph::evaluate<F>(stages.prologue, slice(all, given, stages.params));
      REQUIRE(hoisted.size() == stages.hoisted);
      const Numbers<F> step = graph::evaluate<F>(stages.step, joined({slice(all, 0, given), hoisted}));
      REQUIRE(test::same_bits(step, graph::evaluate<F>(cell.graph(), all)));
    };
    check_step(0.f);
    check_step(0.);

    const std::vector<double> all = test::random_arguments(vjp(cell.graph()), seed);
    const std::vector<double> params = slice(all, given, stages.params);
    const std::vector<double> upstream = slice(all, given + stages.params, results);
    const std::vector<double> hoisted = graph::evaluate<double>(stages.prologue, params);
    const std::vector<double> backward =
        graph::evaluate<double>(stages.backward, joined({slice(all, 0, given), hoisted, upstream}));
    REQUIRE(backward.size() == given + stages.factors);
    const std::vector<double> grad_params =
        graph::evaluate<double>(stages.epilogue, joined({params, slice(backward, given, stages.factors)}));
    const std::vector<double> actual = joined({slice(backward, 0, given), grad_params});
    const std::vector<double> expected = graph::evaluate<double>(vjp(cell.graph()), all);
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!std::isfinite(expected[i]) || std::abs(expected[i]) > 1e8) continue;
      REQUIRE(std::abs(actual[i] - expected[i]) <= 1e-11 * std::max(1., std::abs(expected[i])));
      ++compared;
    }
  }
  CHECK(compared > 4000);
}

}  // namespace spikeforge::autodiff
