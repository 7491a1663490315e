#include "csrc/graph/layer.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/text.h"

#include "tests/catch.h"
#include "tests/graph/random_graph.h"

#include <cmath>
#include <vector>

namespace spikeforge::graph {
namespace {

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double joined(Residual residual, double s, double r) {
  if (residual == Residual::membrane) return s;
  return residual == Residual::add ? s + r : residual == Residual::logical_and ? s * r : (1 - s) * r;
}

}  // namespace

TEST_CASE("a layer equals normalisation, neuron and residual in sequence") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const Cell neuron = test::random_cell(seed, {.operations = 15});
    for (const Residual residual : {Residual::add, Residual::logical_and, Residual::inhibit, Residual::membrane}) {
      const Cell cell = layer(neuron, {.normalised = true, .with_statistics = false, .residual = residual});
      std::vector<double> alone = test::random_arguments(neuron.graph(), seed);
      const double r = .75, mean = .3, scale = 1.7, shift = -.2;
      std::vector<double> together = alone;
      together.insert(together.begin() + static_cast<std::ptrdiff_t>(neuron.input_count()), r);
      together.insert(together.end(), {mean, scale, shift});
      alone[0] = (alone[0] - mean) * scale + shift;
      const bool is_membrane = residual == Residual::membrane;
      if (is_membrane) alone[0] += r;

      std::vector<double> expected = evaluate<double>(neuron.graph(), alone);
      expected[0] = joined(residual, expected[0], r);
      if (is_membrane) expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(neuron.output_count()), alone[0]);
      const std::vector<double> results = evaluate<double>(parse(print(cell)).graph(), together);
      INFO("seed " << seed << "\n" << print(neuron) << print(cell));
      REQUIRE(results.size() == expected.size());
      for (std::size_t k = 0; k < results.size(); ++k) REQUIRE(same(results[k], expected[k]));
    }
  }
}

TEST_CASE("a layer reads as one would write it, whatever names the neuron has taken") {
  const Cell neuron = parse("neuron n(x; v; scale) { h = v + scale * x; return relu(h); v' = h }");
  CHECK(print(layer(neuron, {.normalised = true, .with_statistics = false, .residual = Residual::add})) ==
        R"(neuron n(x, residual; v; scale, mean, scale_, shift) {
  h = v + scale * ((x - mean) * scale_ + shift)
  return relu(h) + residual
  v' = h
}
)");
  CHECK(print(layer(neuron, {.normalised = true, .with_statistics = false, .residual = Residual::membrane})) ==
        R"(neuron n(x, residual; v; scale, mean, scale_, shift) {
  t1 = (x - mean) * scale_ + shift + residual
  h = v + scale * t1
  return relu(h), t1
  v' = h
}
)");
  CHECK(print(layer(neuron, {})) == print(neuron));
}

TEST_CASE("an additional output is the contribution of the statistics to the gradient of x") {
  const Cell neuron = parse("neuron n(x; v; tau) { h = v + x / tau; return relu(h); v' = h }");
  CHECK(print(layer(neuron, {.normalised = true, .with_statistics = true, .residual = std::nullopt})) ==
        R"(neuron n(x; v; tau, mean, scale, shift, offset, slope) {
  t1 = x - mean
  h = v + (t1 * scale + shift) / tau
  return relu(h), offset * x + 0.5 * slope * (t1 * t1)
  v' = h
}
)");
}

TEST_CASE("residuals are found by their names") {
  CHECK(residual_of("add") == Residual::add);
  CHECK(residual_of("and") == Residual::logical_and);
  CHECK(residual_of("iand") == Residual::inhibit);
  CHECK(residual_of("membrane") == Residual::membrane);
  CHECK(residual_of("ADD") == std::nullopt);
}

}  // namespace spikeforge::graph
