// The neurons' functions, forward and backward, against loops in long double over each neuron on its own.
#include "tests/ops/calls.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

constexpr unsigned seed = 20260118;
constexpr double alpha = 2.5;

// shape = [batch, channels, width]
const std::vector<int64_t> shape = {2, 3, 2};
constexpr int64_t n_neurons = 12, n_channels = 3, width = 2;
// Longer than two segments of the backward pass in float64, and no multiple of one.
constexpr int64_t n_steps = 19;

enum class Kind { number, zero_dim, per_channel, per_neuron };

std::vector<int64_t> shape_of(Kind kind) {
  if (kind == Kind::per_channel) return {n_channels, 1};
  if (kind == Kind::per_neuron) return shape;
  return {};
}

// Which element of such a parameter belongs to a neuron.
std::size_t element_of(Kind kind, int64_t neuron) {
  if (kind == Kind::per_channel) return static_cast<std::size_t>(neuron / width % n_channels);
  if (kind == Kind::per_neuron) return static_cast<std::size_t>(neuron);
  return 0;
}

Tensor tensor_of(const std::vector<Real>& values, at::IntArrayRef sizes) {
  const Tensor t = at::empty(sizes, at::kDouble);
  for (std::size_t i = 0; i < values.size(); ++i) t.mutable_data_ptr<double>()[i] = double(values[i]);
  return t.requires_grad_(true);
}

// A call in float64, and one Case of the oracle for each of its neurons.
struct Problem {
  const NeuronFacts& neuron;
  Form form;
  bool given_states, store_v;
  std::vector<Kind> kinds;  // of each parameter
  std::vector<Case> cases;
  std::vector<Upstream> upstream;
  Call call;

  Problem(const NeuronFacts& facts, const Form& chosen, bool given, bool sequences, int salt, Random& random)
      : neuron(facts), form(chosen), given_states(given), store_v(sequences) {
    for (std::size_t j = 0; j < neuron.params.size(); ++j) {
      const bool is_weight = neuron.params[j].name == "w";  // never a number
      kinds.push_back(is_weight ? Kind(1 + salt % 3) : Kind((int(j) + salt) % 4));
    }
    draw_cases(random);
    make_call();
  }

  void draw_cases(Random& random) {
    const std::size_t n = n_neurons;
    std::vector<std::vector<Real>> shared(kinds.size());
    for (std::size_t j = 0; j < kinds.size(); ++j)
      for (std::size_t e = 0; e < n; ++e)
        shared[j].push_back(random.uniform(neuron.params[j].low, neuron.params[j].high));
    for (std::size_t i = 0; i < n; ++i) {
      Case c{&neuron, form, sigmoid_of(alpha), {}, {}, {}, {}};
      for (std::size_t j = 0; j < kinds.size(); ++j)
        c.params.*neuron.params[j].field = shared[j][element_of(kinds[j], int64_t(i))];
      for (int64_t t = 0; t < n_steps; ++t) c.x.push_back(random.uniform(neuron.weakest, neuron.strongest));
      if (given_states) {
        c.v = random.uniform(initial_low, initial_high);
        if (neuron.has_w) c.w = random.uniform(-.3L, .3L);
      }
      cases.push_back(c);
      upstream.push_back(random_upstream(neuron, c.x.size(), store_v, random));
    }
  }

  // [T, *shape] from one value for each step and neuron.
  template <class Value> Tensor sequence(Value&& value) const {
    std::vector<Real> all;
    for (std::size_t t = 0; t < std::size_t(n_steps); ++t)
      for (std::size_t i = 0; i < cases.size(); ++i) all.push_back(value(i, t));
    return tensor_of(all, {n_steps, shape[0], shape[1], shape[2]});
  }

  template <class Value> Tensor one_step(Value&& value) const {
    std::vector<Real> all;
    for (std::size_t i = 0; i < cases.size(); ++i) all.push_back(value(i));
    return tensor_of(all, shape);
  }

  void make_call() {
    call = {.neuron = neuron.name,
            .x = sequence([&](auto i, auto t) { return cases[i].x[t]; }),
            .form = form,
            .surrogate_args = {alpha},
            .store_v = store_v};
    if (given_states) call.v = one_step([&](auto i) { return *cases[i].v; });
    if (given_states && neuron.has_w) call.w = one_step([&](auto i) { return *cases[i].w; });
    for (std::size_t j = 0; j < kinds.size(); ++j) {
      const auto value = [&](std::size_t i) { return cases[i].params.*neuron.params[j].field; };
      if (kinds[j] == Kind::number) {
        call.params.insert_or_assign(neuron.params[j].name, Param(double(value(0))));
        continue;
      }
      const Tensor t = tensor_of({}, shape_of(kinds[j])).requires_grad_(false);
      for (int64_t i = 0; i < n_neurons; ++i)
        t.mutable_data_ptr<double>()[element_of(kinds[j], i)] = double(value(std::size_t(i)));
      t.requires_grad_(form.hard_reset || neuron.params[j].name != "v_reset");
      call.params.insert_or_assign(neuron.params[j].name, Param(t));
    }
  }

  // A state's sequence, or its last step.
  template <class Value> Tensor returned(Value&& value) const {
    if (store_v) return sequence(value);
    return one_step([&](auto i) { return value(i, std::size_t(n_steps - 1)); });
  }

  Tensors upstream_tensors() const {
    Tensors list = {sequence([&](auto i, auto t) { return upstream[i].s[t]; }),
                    returned([&](auto i, auto t) { return upstream[i].v[t]; })};
    if (neuron.has_w) list.push_back(returned([&](auto i, auto t) { return upstream[i].w[t]; }));
    return list;
  }

  std::string text() const {
    std::string list = neuron.name + " (" + form.text() + "), " + (given_states ? "given" : "own") + " states" +
                       (store_v ? ", store_v" : "") + ";";
    for (std::size_t j = 0; j < kinds.size(); ++j) list += " " + neuron.params[j].name + std::to_string(int(kinds[j]));
    return list + ", seed " + std::to_string(seed);
  }
};

void check_close(const std::string& name, const Tensor& actual, const std::vector<Real>& expected, Real bound) {
  const std::vector<Real> values = values_of(actual);
  REQUIRE(values.size() == expected.size());
  Real scale = 0, error = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    scale = std::max(scale, std::abs(expected[i]));
    const Real off = std::abs(values[i] - expected[i]);
    error = off >= error ? off : std::isnan(off) ? HUGE_VALL : error;
  }
  INFO(name << ": error " << double(error) << ", of at most " << double(scale));
  REQUIRE(error <= bound * std::max(scale, 1e-3L));
}

void check_forward(const Problem& problem, const Tensors& results) {
  std::vector<std::vector<Step>> steps;
  for (const Case& c : problem.cases) steps.push_back(walk(c));
  const auto spikes = problem.sequence([&](auto i, auto t) { return steps[i][t].s; });
  REQUIRE(results.size() == (problem.neuron.has_w ? 3 : 2));
  REQUIRE(results[0].sizes() == problem.call.x.sizes());
  check_close("spikes", results[0], values_of(spikes), problem.form.spiking ? 0 : 1e-10L);
  const auto check_state = [&](const char* name, const Tensor& actual, Real Step::*field) {
    const Tensor expected = problem.returned([&](auto i, auto t) { return steps[i][t].*field; });
    REQUIRE(actual.sizes() == expected.sizes());
    check_close(name, actual, values_of(expected), 1e-10L);
  };
  check_state("v", results[1], &Step::v);
  if (problem.neuron.has_w) check_state("w", results[2], &Step::w);
}

void check_backward(const Problem& problem, const Tensors& results) {
  std::vector<Gradients> expected;
  for (std::size_t i = 0; i < problem.cases.size(); ++i)
    expected.push_back(differentiate(problem.cases[i], problem.upstream[i]));
  const NamedGradients actual = gradients(problem.call, results, problem.upstream_tensors());

  std::map<std::string, std::vector<Real>> wanted;
  wanted["x"] = values_of(problem.sequence([&](auto i, auto t) { return expected[i].x[t]; }));
  for (const Gradients& g : expected) {
    wanted["state v"].push_back(g.v);
    wanted["state w"].push_back(g.w);
  }
  std::size_t tensors = 1 + (problem.call.v ? 1 : 0) + (problem.call.w ? 1 : 0);
  for (std::size_t j = 0; j < problem.kinds.size(); ++j) {
    const std::string& name = problem.neuron.params[j].name;
    if (problem.kinds[j] == Kind::number || (name == "v_reset" && !problem.form.hard_reset)) continue;
    ++tensors;
    wanted[name].resize(element_of(problem.kinds[j], n_neurons - 1) + 1);
    for (int64_t i = 0; i < n_neurons; ++i)
      wanted[name][element_of(problem.kinds[j], i)] += expected[std::size_t(i)].params[j];
  }

  REQUIRE(actual.names.size() == tensors);
  for (std::size_t i = 0; i < actual.names.size(); ++i) {
    INFO("the gradient of " << actual.names[i]);
    REQUIRE(actual.values[i].defined());
    check_close(actual.names[i], actual.values[i], wanted.at(actual.names[i]), 1e-10L);
  }
}

void check_neuron(const NeuronFacts& neuron) {
  Random random(seed);
  int salt = 0;
  Real spikes = 0, steps = 0;
  for (const Form& form : forms(neuron)) {
    for (const bool given_states : {true, false}) {
      for (const bool store_v : {false, true}) {
        const Problem problem(neuron, form, given_states, store_v, salt++, random);
        INFO(problem.text());
        const Tensors results = run(problem.call);
        check_forward(problem, results);
        check_backward(problem, results);
        if (!form.spiking) continue;
        for (const Real s : values_of(results[0])) spikes += s;
        steps += n_steps * n_neurons;
      }
    }
  }
  INFO(neuron.name << ": " << double(spikes / steps) << " of the steps fired");
  CHECK(spikes > .05L * steps);
  CHECK(spikes < .8L * steps);
}

}  // namespace

TEST_CASE("each neuron and its gradients are those of its equations") {
  REQUIRE(neurons().size() == std::size(all_neurons));
  for (const NeuronFacts& neuron : neurons()) check_neuron(neuron);
}

TEST_CASE("a call that names no parameter has the published defaults") {
  const std::map<std::string, std::map<std::string, Real>> others = {{"qif", {{"v_reset", -.1L}}},
                                                                     {"eif", {{"v_reset", -.1L}}},
                                                                     {"izhikevich", {{"v_rest", -.1L}}},
                                                                     {"adaptive_lif", {{"b", .1L}}}};
  for (const NeuronFacts& neuron : neurons()) {
    const Tensor x = leaf(drive(neuron.name, {n_steps, 5}, at::kDouble));
    const Call call = default_call(neuron.name, x);
    const Tensors results = run(call);
    const Tensor upstream = noise({n_steps, 5}, at::kDouble);
    const std::vector<Real> gradient = values_of(gradients(call, results, {upstream, Tensor(), Tensor()}).values.at(0));
    const std::vector<Real> given = values_of(x), spikes = values_of(results[0]), v = values_of(results[1]),
                            weights = values_of(upstream);
    for (std::size_t i = 0; i < 5; ++i) {
      Case c{&neuron, {}, sigmoid_of(4), {}, {}, {}, {}};
      if (others.contains(neuron.name))
        for (const ParamFacts& param : neuron.params)
          if (const auto& own = others.at(neuron.name); own.contains(param.name))
            c.params.*param.field = own.at(param.name);
      Upstream g;
      for (std::size_t t = 0; t < n_steps; ++t) {
        c.x.push_back(given[t * 5 + i]);
        g.s.push_back(weights[t * 5 + i]);
        g.v.push_back(0);
        g.w.push_back(0);
      }
      const std::vector<Step> steps = walk(c);
      const Gradients expected = differentiate(c, g);
      INFO(neuron.name << ", neuron " << i);
      REQUIRE(std::abs(v[i] - steps.back().v) < 1e-12L);
      for (std::size_t t = 0; t < n_steps; ++t) {
        REQUIRE(spikes[t * 5 + i] == steps[t].s);
        REQUIRE(std::abs(gradient[t * 5 + i] - expected.x[t]) < 1e-10L);
      }
    }
  }
}

}  // namespace spikeforge::test
