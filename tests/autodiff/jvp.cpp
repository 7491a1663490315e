#include "csrc/autodiff/jvp.h"
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <cmath>
#include <string>
#include <vector>

namespace spikeforge::autodiff {
namespace {

using graph::Cell;

std::vector<double> drawn(test::Dice& dice, std::size_t count) {
  std::vector<double> numbers(count);
  for (double& number : numbers) number = dice.uniform(-1, 1);
  return numbers;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Values and tangents of the arguments, in the order of the arguments of the jvp: inputs, states, parameters.
std::vector<double> interleaved(const Cell& cell, const std::vector<double>& values, const std::vector<double>& rates,
                                const std::vector<bool>& inputs, const std::vector<bool>& params) {
  std::vector<double> all;
  const auto part = [&](std::size_t first, std::size_t count, auto&& has) {
    for (std::size_t i = 0; i < count; ++i) all.push_back(values[first + i]);
    for (std::size_t i = 0; i < count; ++i)
      if (has(i)) all.push_back(rates[first + i]);
  };
  part(0, cell.input_count(), [&](std::size_t i) { return inputs[i]; });
  part(cell.input_count(), cell.state_count(), [](std::size_t) { return true; });
  part(cell.input_count() + cell.state_count(), cell.param_count(), [&](std::size_t j) { return params[j]; });
  return all;
}

}  // namespace

TEST_CASE("<g, J u> is <J^T g, u> for random cells, whichever arguments have tangents") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Cell cell = test::random_cell(seed, {.operations = 20});
    test::Dice dice(seed + 5);
    std::vector<bool> inputs, params;
    for (std::size_t i = 0; i < cell.input_count(); ++i) inputs.push_back(dice.chance(.7));
    for (std::size_t j = 0; j < cell.param_count(); ++j) params.push_back(dice.chance(.7));
    const Cell both = jvp(cell, inputs, params);
    CHECK(graph::parse(print(both)).signature().inputs == both.signature().inputs);

    const std::vector<double> at = test::random_arguments(cell.graph(), seed);
    std::vector<double> u = drawn(dice, at.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) u[i] *= inputs[i];
    for (std::size_t j = 0; j < params.size(); ++j) u[cell.input_count() + cell.state_count() + j] *= params[j];
    const std::vector<double> g = drawn(dice, cell.graph().results().size());
    const std::vector<double> results = graph::evaluate<double>(both.graph(), interleaved(cell, at, u, inputs, params));
    const std::size_t outputs = cell.output_count(), states = cell.state_count();
    std::vector<double> values, rates;
    for (std::size_t k = 0; k < results.size(); ++k) {
      const bool is_value = k < outputs || (k >= 2 * outputs && k < 2 * outputs + states);
      (is_value ? values : rates).push_back(results[k]);
    }
    const std::vector<double> expected = graph::evaluate<double>(cell.graph(), at);
    INFO("seed " << seed << "\n" << print(cell) << print(both));
    for (std::size_t k = 0; k < values.size(); ++k)
      REQUIRE((values[k] == expected[k] || (std::isnan(values[k]) && std::isnan(expected[k]))));

    std::vector<double> arguments = at;
    arguments.insert(arguments.end(), g.begin(), g.end());
    const double one = product(g, rates), other = product(graph::evaluate<double>(vjp(cell.graph()), arguments), u);
    if (!std::isfinite(one) || !std::isfinite(other)) continue;
    ++compared;
    REQUIRE(std::abs(one - other) <= 1e-9 * std::max({1., std::abs(one), std::abs(other)}));
  }
  CHECK(compared > 200);
}

TEST_CASE("a surrogate's derivative is differentiated as finite differences say") {
  for (const graph::Surrogate& surrogate : {
#define SPIKEFORGE_SURROGATE(name, ...) graph::surrogate::name(),
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
       }) {
    const Cell cell = graph::parse("neuron n(x; ) { return surrogate_gradient(x, " + graph::text_of(surrogate) + ") }");
    const auto value = [&](double u) { return graph::evaluate<double>(cell.graph(), std::vector<double>{u})[0]; };
    for (const double u : {-1.37, -.61, -.083, .071, .44, 1.29, 2.6}) {
      const double h = 1e-6;
      const double expected = (value(u + h) - value(u - h)) / (2 * h);
      const double actual = graph::evaluate<double>(vjp(cell.graph()), std::vector<double>{u, 1})[0];
      INFO(graph::text_of(surrogate) << " at " << u);
      CHECK(std::abs(actual - expected) <= 1e-5 * std::max(1., std::abs(expected)));
    }
  }
}

TEST_CASE("the jvp of a neuron reads as one would write it") {
  const Cell cell = graph::parse("neuron leaky(x; v = 0.5; tau) { h = v + x / tau; return tanh(h); v' = 0.9 * h }");
  CHECK(print(jvp(cell, {true}, {false})) == R"(neuron leaky(x, tangent0; v = 0.5, tangent1; tau) {
  h = v + x / tau
  t1 = tangent1 + tangent0 * (1 / tau)
  t2 = tanh(h)
  return t2, t1 * (1 - square(t2))
  v' = 0.9 * h
  tangent1' = t1 * 0.9
}
)");
}

}  // namespace spikeforge::autodiff
