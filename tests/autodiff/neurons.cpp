// Compares the text of each predefined neuron with its struct in csrc/neuron: the steps bit for bit, and the derivative
// derived from the text with the struct's handwritten derivative within rounding.
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/predefined_cells.h"
#include "csrc/kernels/multistep/written_step.h"
#include "csrc/neuron/cell.h"
#include "csrc/neuron/cells.h"
#include "csrc/neuron/neuron_kind.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"
#include "tests/graph/random_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

namespace spikeforge::test {
namespace {

template <class F> struct Point { std::vector<F> x, states, params, grad_outputs, grad_next; };

template <class F> struct Outcome {
  std::vector<F> step;       // outputs, next states
  std::vector<F> gradients;  // by inputs, states, parameters
};

template <class F, template <class, class> class Neuron, template <class> class Surrogate>
Outcome<F> run_predefined(const Point<F>& at, const CellForm& options, const graph::Surrogate& surrogate) {
  using Cell = SpikingCell<F, Neuron<F, CellForm>, Surrogate<F>, CellForm>;
  const Cell cell(at.params.data(), Surrogate<F>(surrogate.args.data()), options);
  Outcome<F> outcome;
  std::vector<F> states = at.states;
  F spike;
  cell.step(at.x.data(), states.data(), &spike);
  outcome.step = {spike};
  outcome.step.insert(outcome.step.end(), states.begin(), states.end());

  std::vector<F> grad_states = at.grad_next, grad_params(Cell::n_params);
  const std::array<F, 2> grad_initial{};
  F grad_x;
  cell.vjp(at.x.data(), at.states.data(), at.grad_outputs.data(), grad_states.data(), &grad_x, grad_params.data());
  cell.finish(grad_initial.data(), grad_params.data());
  outcome.gradients = {grad_x};
  outcome.gradients.insert(outcome.gradients.end(), grad_states.begin(), grad_states.end());
  outcome.gradients.insert(outcome.gradients.end(), grad_params.begin(), grad_params.end());
  return outcome;
}

template <class F> Outcome<F> run_written(const graph::Cell& cell, const graph::Graph& vjp, const Point<F>& at) {
  std::vector<F> arguments = at.x;
  for (const auto* more : {&at.states, &at.params}) arguments.insert(arguments.end(), more->begin(), more->end());
  Outcome<F> outcome{graph::evaluate<F>(cell.graph(), arguments), {}};
  for (const auto* more : {&at.grad_outputs, &at.grad_next})
    arguments.insert(arguments.end(), more->begin(), more->end());
  outcome.gradients = graph::evaluate<F>(vjp, arguments);
  return outcome;
}

// The parsed text of the neuron, with all constants that it reads as parameters.
graph::Cell parsed_neuron(const PredefinedCell& neuron, const graph::Surrogate& surrogate, const CellForm& form) {
  NeuronDescription described{.neuron = neuron.name,
                              .name = neuron.name,
                              .spike = "spike(u, " + graph::text_of(surrogate) + ")",
                              .params = {},
                              .numbers = {},
                              .detach_reset = form.detach_reset,
                              .decay_input = form.decay_input};
  for (const CellParam& param : neuron.params)
    if (form.hard_reset || param.name != "v_reset") described.params.push_back(param.name);
  return graph::parse(graph::print(trace_neuron(described)));
}

// Finite values are so small that cancellation within dL/dH does not affect the last digits of a gradient.
constexpr double specials[] = {
    0.,     -0.,   1.,  -1.,  .5,  -.1,      3.,        1e-30,
    -1e-30, 1e-40, 30., -30., 1e2, HUGE_VAL, -HUGE_VAL, std::numeric_limits<double>::quiet_NaN()};
constexpr int special_count = std::size(specials) * std::size(specials);

// Point i of the table: all pairs of special values of x and v, then random ones.
template <class F> Point<F> point(const PredefinedCell& neuron, int i, Dice& dice) {
  const auto draw = [&](std::size_t count, double low, double high) {
    std::vector<F> numbers(count);
    for (F& number : numbers) number = static_cast<F>(dice.uniform(low, high));
    return numbers;
  };
  const std::size_t states = neuron.states.size();
  Point<F> at{draw(1, -1, 3), draw(states, -.5, 1.2), draw(neuron.params.size(), .2, 1.5), draw(1, -1, 1),
              draw(states, -1, 1)};
  if (i < special_count) {
    at.x[0] = static_cast<F>(specials[static_cast<std::size_t>(i) % std::size(specials)]);
    at.states[0] = static_cast<F>(specials[static_cast<std::size_t>(i) / std::size(specials)]);
  }
  return at;
}

struct Seen {
  int spikes = 0, steps = 0, finite = 0;
};

template <NeuronKind kind, class F, template <class, class> class Neuron, template <class> class Surrogate>
void compare(const graph::Surrogate& surrogate, Seen& seen) {
  const PredefinedCell& neuron = predefined_cell(kind);
  for (int bits = 0; bits < 8; ++bits) {
    const CellForm form{.hard_reset = (bits & 1) == 0, .detach_reset = (bits & 2) != 0, .decay_input = (bits & 4) == 0};
    if (!form.decay_input && !has_decay_input(kind)) continue;
    const graph::Cell cell = parsed_neuron(neuron, surrogate, form);
    const graph::Graph vjp = autodiff::vjp(cell.graph());
    INFO(print(cell) << print(vjp, "vjp"));
    Dice dice(static_cast<std::uint64_t>(bits) + 1);
    for (int i = 0; i < special_count + 150; ++i) {
      const Point<F> at = point<F>(neuron, i, dice);
      Outcome<F> expected = run_predefined<F, Neuron, Surrogate>(at, form, surrogate);
      Point<F> as_text = at;
      if (!form.hard_reset) {
        constexpr int v_reset = Neuron<F, CellForm>::v_reset;
        as_text.params.erase(as_text.params.begin() + v_reset);
        const auto unread = expected.gradients.end() - Neuron<F, CellForm>::n_params + v_reset;
        REQUIRE(*unread == 0);
        expected.gradients.erase(unread);
      }
      const Outcome<F> actual = run_written(cell, vjp, as_text);
      INFO("point " << i << ", x = " << at.x[0] << ", v = " << at.states[0]);
      REQUIRE(same_bits(actual.step, expected.step));
      seen.spikes += actual.step[0] == 1;
      ++seen.steps;
      if (!std::ranges::all_of(expected.gradients, [](F gradient) { return std::isfinite(gradient); })) continue;
      ++seen.finite;
      REQUIRE(actual.gradients.size() == expected.gradients.size());
      double scale = 1;
      for (const F gradient : expected.gradients) scale = std::max(scale, double(std::abs(gradient)));
      const double bound = std::is_same_v<F, float> ? 5e-6 : 1e-14;
      for (std::size_t k = 0; k < actual.gradients.size(); ++k) {
        INFO("the gradient by argument " << k << " is " << actual.gradients[k] << ", expected "
                                         << expected.gradients[k]);
        REQUIRE(std::abs(actual.gradients[k] - expected.gradients[k]) <= bound * scale);
      }
    }
  }
}

template <template <class> class Surrogate> void compare_all(const graph::Surrogate& surrogate, Seen& seen) {
  for_each_neuron([&]<NeuronKind kind>() {
    compare<kind, float, NeuronStruct<kind>::template type, Surrogate>(surrogate, seen);
    compare<kind, double, NeuronStruct<kind>::template type, Surrogate>(surrogate, seen);
  });
}

}  // namespace

TEST_CASE("the text of each neuron has the bits of its step, and its derivative") {
  Seen seen;
#define SPIKEFORGE_SURROGATE(name, Struct, ...) compare_all<Struct>(graph::surrogate::name(), seen);
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
  CHECK(seen.spikes > seen.steps / 10);
  CHECK(seen.spikes < seen.steps * 9 / 10);
  CHECK(seen.finite > seen.steps / 2);
}

TEST_CASE("a gradient nobody needs, that of w_rest, is known to be zero") {
  const graph::Cell cell = parsed_neuron(predefined_cell(NeuronKind::izhikevich), graph::surrogate::sigmoid(), {});
  const graph::Graph vjp = autodiff::vjp(cell.graph());
  for (std::size_t i = 0; i < vjp.results().size(); ++i)
    CHECK(autodiff::is_zero(vjp, i) == (vjp.name(static_cast<graph::Id>(i)) == "w_rest"));
}

}  // namespace spikeforge::test
