// The predefined neurons written as lambdas, against csrc/neuron: the step to the bit, and the derivatives, which
// are written by hand there, within rounding. Each proves the other.
#include "csrc/autodiff/vjp.h"
#include "csrc/graph/internal/evaluate.h"
#include "csrc/graph/text.h"
#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/cell.h"
#include "csrc/neuron/cells.h"
#include "csrc/neuron/neuron_kind.h"

#include "tests/catch.h"
#include "tests/graph/bits.h"
#include "tests/graph/neurons.h"
#include "tests/graph/random_graph.h"

#include <array>
#include <vector>

namespace spikeforge::test {
namespace {

template <class F>
struct Point {
  std::vector<F> x, states, params, grad_outputs, grad_next;
};

template <class F>
struct Outcome {
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

template <class F>
Outcome<F> run_written(const graph::Cell& cell, const graph::Graph& vjp, const Point<F>& at) {
  std::vector<F> arguments = at.x;
  for (const auto* more : {&at.states, &at.params}) arguments.insert(arguments.end(), more->begin(), more->end());
  Outcome<F> outcome{graph::evaluate<F>(cell.graph(), arguments), {}};
  for (const auto* more : {&at.grad_outputs, &at.grad_next})
    arguments.insert(arguments.end(), more->begin(), more->end());
  outcome.gradients = graph::evaluate<F>(vjp, arguments);
  return outcome;
}

template <class F>
Point<F> random_point(const graph::Cell& cell, Dice& dice) {
  const auto draw = [&](std::size_t count, double low, double high) {
    std::vector<F> numbers(count);
    for (F& number : numbers) number = static_cast<F>(dice.uniform(low, high));
    return numbers;
  };
  Point<F> at{draw(1, -1, 3), draw(cell.state_count(), -.5, 1.2), draw(cell.param_count(), .2, 1.5), draw(1, -1, 1),
              draw(cell.state_count(), -1, 1)};
  if (dice.chance(.02)) at.x[0] = dice.chance(.5) ? F(HUGE_VAL) : F(std::nan(""));
  return at;
}

struct Seen {
  int spikes = 0, steps = 0;
};

template <NeuronKind kind, class F, template <class, class> class Neuron, template <class> class Surrogate>
void compare(const std::string& name, const graph::Surrogate& surrogate, Seen& seen) {
  for (int bits = 0; bits < 8; ++bits) {
    const Variant form{(bits & 1) == 0, (bits & 2) != 0, (bits & 4) == 0};
    if (!form.decay_input && !has_decay_input(kind)) continue;
    const CellForm options{form.hard_reset, form.detach_reset, true, form.decay_input};
    const graph::Cell cell = written_neuron(name, surrogate, form);
    const graph::Graph vjp = autodiff::vjp(cell.graph());
    Dice dice(static_cast<std::uint64_t>(bits) + 1);
    for (int i = 0; i < 150; ++i) {
      const Point<F> at = random_point<F>(cell, dice);
      const Outcome<F> expected = run_predefined<F, Neuron, Surrogate>(at, options, surrogate);
      const Outcome<F> actual = run_written(cell, vjp, at);
      INFO(name << " (" << form.text() << "), " << text_of(surrogate) << ", point " << i << ", x = " << at.x[0]);
      REQUIRE(same_bits(actual.step, expected.step));
      seen.spikes += actual.step[0] == 1;
      ++seen.steps;
      if (!std::isfinite(at.x[0])) continue;
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

template <template <class> class Surrogate>
void compare_all(const graph::Surrogate& surrogate, Seen& seen) {
#define SPIKEFORGE_NEURON(name, Struct, header, tensors, states, params)       \
  compare<NeuronKind::name, float, Struct, Surrogate>(#name, surrogate, seen); \
  compare<NeuronKind::name, double, Struct, Surrogate>(#name, surrogate, seen);
#include "csrc/neuron/neurons.def"
}

}  // namespace

TEST_CASE("neurons written as lambdas take the predefined steps to the bit and have their derivatives") {
  Seen seen;
#define SPIKEFORGE_SURROGATE(name, Struct, ...) compare_all<Struct>(graph::surrogate::name(), seen);
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
  CHECK(seen.spikes > seen.steps / 10);
  CHECK(seen.spikes < seen.steps * 9 / 10);
}

TEST_CASE("a gradient nobody needs, that of w_rest, is known to be zero") {
  const graph::Cell cell = written_neuron("izhikevich", graph::surrogate::sigmoid(), {});
  const graph::Graph vjp = autodiff::vjp(cell.graph());
  for (std::size_t i = 0; i < vjp.results().size(); ++i)
    CHECK(autodiff::is_zero(vjp, i) == (vjp.name(static_cast<graph::Id>(i)) == "w_rest"));
}

}  // namespace spikeforge::test
