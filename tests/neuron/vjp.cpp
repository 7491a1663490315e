// The cells' derivatives, by hand in csrc/neuron, against finite differences of the equations.
#include "csrc/kernels/multistep/cell.h"
#include "csrc/neuron/cell.h"
#include "csrc/neuron/cells.h"
#include "csrc/neuron/options.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/neuron/oracle.h"

namespace spikeforge::test {
namespace {

constexpr unsigned seed = 20260117;
constexpr double alpha[] = {2.5};

struct Run {
  std::vector<Step> steps;
  Gradients gradients;
};

// A plain loop over the cell, forward and backward.
template <class F, template <class, class> class Neuron, class Options>
Run run_cell(const Case& c, const Upstream& g, const Options& options) {
  using Cell = SpikingCell<F, Neuron<F, Options>, Sigmoid<F>, Options>;
  std::array<F, Cell::n_params> params{}, grad_params{};
  REQUIRE(c.neuron->params.size() == params.size());
  for (std::size_t j = 0; j < params.size(); ++j) params[j] = static_cast<F>(c.params.*c.neuron->params[j].field);
  const Cell cell(params.data(), Sigmoid<F>(alpha), options);

  std::array<F, 2> state{};
  cell.initial(state.data());
  if (c.v) state[0] = static_cast<F>(*c.v);
  if (c.w) state[1] = static_cast<F>(*c.w);

  Run run;
  std::vector<std::array<F, 2>> before;
  for (const Real given : c.x) {
    const F x = static_cast<F>(given);
    F y;
    before.push_back(state);
    cell.step(&x, state.data(), &y);
    run.steps.push_back({0, y, state[0], state[1]});
  }

  std::array<F, 2> grad_state{};
  run.gradients.x.resize(c.x.size());
  for (std::size_t t = c.x.size(); t-- > 0;) {
    grad_state[0] += static_cast<F>(g.v[t]);
    if (Cell::n_states == 2) grad_state[1] += static_cast<F>(g.w[t]);
    const F x = static_cast<F>(c.x[t]), grad_y = static_cast<F>(g.s[t]);
    F grad_x;
    cell.vjp(&x, before[t].data(), &grad_y, grad_state.data(), &grad_x, grad_params.data());
    run.gradients.x[t] = grad_x;
  }
  const std::array<F, 2> grad_initial = {c.v ? F(0) : grad_state[0], c.w ? F(0) : grad_state[1]};
  cell.finish(grad_initial.data(), grad_params.data());
  run.gradients.params.assign(grad_params.begin(), grad_params.end());
  run.gradients.v = c.v ? grad_state[0] : 0;
  run.gradients.w = c.w ? grad_state[1] : 0;
  return run;
}

template <class F, class Options> Run run_neuron(const Case& c, const Upstream& g, const Options& options) {
  const std::string& wanted = c.neuron->name;
  for (const NeuronKind kind : all_neurons)
    if (neuron_row(kind).name == wanted)
      return with_kind(
          kind, [&]<NeuronKind each>() { return run_cell<F, NeuronStruct<each>::template type>(c, g, options); });
  FAIL("no neuron is called " << wanted);
  return {};
}

CellForm options_of(const Form& form) {
  return {.hard_reset = form.hard_reset,
          .detach_reset = form.detach_reset,
          .spiking = form.spiking,
          .decay_input = form.decay_input};
}

std::vector<Real> listed(const Gradients& gradients) {
  std::vector<Real> all = gradients.x;
  all.push_back(gradients.v);
  all.push_back(gradients.w);
  all.insert(all.end(), gradients.params.begin(), gradients.params.end());
  return all;
}

std::string position_of(const Case& c, std::size_t i) {
  if (i < c.x.size()) return "x[" + std::to_string(i) + "]";
  if (i < c.x.size() + 2) return i == c.x.size() ? "v" : "w";
  return c.neuron->params[i - c.x.size() - 2].name;
}

// Each sum of a gradient is judged by the size of what a step adds to it, at least 1.
void check_gradients(const Case& c, const Gradients& actual, const Gradients& expected, Real bound) {
  const std::vector<Real> a = listed(actual), e = listed(expected);
  REQUIRE(a.size() == e.size());
  Real scale = 1;
  for (const Real value : e) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("the gradient of " << position_of(c, i) << " is " << double(a[i]) << ", expected " << double(e[i]));
    REQUIRE(std::abs(a[i] - e[i]) <= bound * scale);
  }
}

void check_steps(const Case& c, const Run& run, Real bound) {
  const std::vector<Step> expected = walk(c);
  for (std::size_t t = 0; t < expected.size(); ++t) {
    INFO("step " << t);
    REQUIRE(std::abs(run.steps[t].s - expected[t].s) <= bound);
    REQUIRE(std::abs(run.steps[t].v - expected[t].v) <= bound * std::max(Real(1), std::abs(expected[t].v)));
    if (c.neuron->has_w)
      REQUIRE(std::abs(run.steps[t].w - expected[t].w) <= bound * std::max(Real(1), std::abs(expected[t].w)));
  }
}

struct Seen {
  int spikes = 0, silent = 0;
};

template <class F> Seen check_all_neurons(Real bound) {
  Seen seen;
  Random random(seed);
  for (const NeuronFacts& neuron : neurons()) {
    for (const Form& form : forms(neuron)) {
      for (const int steps : {1, 1, 1, 6}) {
        for (const bool given_states : {true, false}) {
          const Case c = random_case<F>(neuron, form, sigmoid_of(alpha[0]), steps, given_states, random);
          Upstream g = random_upstream(neuron, c.x.size(), /*sequences=*/true, random);
          for (auto* sequence : {&g.s, &g.v, &g.w})
            for (Real& value : *sequence) value = static_cast<F>(value);
          INFO(neuron.name << " (" << form.text() << "), " << steps << " steps, " << (given_states ? "given" : "own")
                           << " states, seed " << seed);
          const Run run = run_neuron<F>(c, g, options_of(form));
          check_steps(c, run, bound);
          check_gradients(c, run.gradients, differentiate(c, g), bound);
          if (form.spiking)
            for (const Step& step : run.steps) ++(step.s == 1 ? seen.spikes : seen.silent);
        }
      }
    }
  }
  return seen;
}

template <bool hard_reset, bool detach_reset, bool spiking, bool decay_input>
Run run_static(const Case& c, const Upstream& g) {
  return run_neuron<float>(c, g, StaticOptions<hard_reset, detach_reset, spiking, decay_input>{});
}

using StaticRun = Run (*)(const Case&, const Upstream&);

template <std::size_t... bits>
constexpr std::array<StaticRun, sizeof...(bits)> static_runs(std::index_sequence<bits...>) {
  return {run_static<(bits & 8) != 0, (bits & 4) != 0, (bits & 2) != 0, (bits & 1) != 0>...};
}

}  // namespace

TEST_CASE("each neuron's step and vjp are its equations and their finite differences, in float64") {
  const Seen seen = check_all_neurons<double>(1e-11L);
  CHECK(seen.spikes > 100);  // neither branch of the reset went untested
  CHECK(seen.silent > 100);
}

TEST_CASE("each neuron's step and vjp are its equations and their finite differences, in float32") {
  const Seen seen = check_all_neurons<float>(1e-5L);
  CHECK(seen.spikes > 100);
  CHECK(seen.silent > 100);
}

TEST_CASE("an option that is known at compile time, as in GPU kernels, changes no bit") {
  static constexpr auto runs = static_runs(std::make_index_sequence<16>());
  Random random(seed);
  for (const NeuronFacts& neuron : neurons()) {
    for (const Form& form : forms(neuron)) {
      INFO(neuron.name << " (" << form.text() << "), seed " << seed);
      const Case c = random_case<float>(neuron, form, sigmoid_of(alpha[0]), 9, false, random);
      const Upstream g = random_upstream(neuron, c.x.size(), true, random);
      const int bits = form.hard_reset * 8 + form.detach_reset * 4 + form.spiking * 2 + form.decay_input;
      const Run a = run_neuron<float>(c, g, options_of(form)), b = runs[static_cast<std::size_t>(bits)](c, g);
      REQUIRE(listed(a.gradients) == listed(b.gradients));
      for (std::size_t t = 0; t < c.x.size(); ++t) {
        REQUIRE(a.steps[t].s == b.steps[t].s);
        REQUIRE(a.steps[t].v == b.steps[t].v);
        REQUIRE(a.steps[t].w == b.steps[t].w);
      }
    }
  }
}

}  // namespace spikeforge::test
