// The C++ interface of networks. tests/python/network/test_simulation.py compares their steps with a dense loop.
#include "csrc/simulation/internal/thread_choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tests/catch.h"
#include "tests/simulation/neurons.h"

namespace spikeforge::test {
namespace {

Recording joined(const Recording& a, const Recording& b) {
  Recording both{at::cat({a.steps, b.steps}), at::cat({a.neurons, b.neurons}), {}};
  for (std::size_t i = 0; i < a.states.size(); ++i) both.states.push_back(at::cat({a.states[i], b.states[i]}));
  return both;
}

SimulateOptions with_states(const TestNetwork& made) {
  return {.states = {{made.c, "v", {14, 0, 7}}, {made.a, "wait", {59}}}};
}

// So many that threads share them.
Network large_network() {
  Network network({.seed = 11, .dtype = at::kFloat, .weight_dtype = at::kHalf});
  const Population many = network.populate("many", 5000, leaky(), {{"leak", 0.9}});
  const Population few = network.populate("few", 901, leaky(), {{"leak", 0.8}});
  for (const Population* const target : {&many, &few})
    network.project(many, *target,
                    {.rule = "fixed_probability",
                     .amount = 0.01,
                     .weight = {.law = "normal", .first = 0.02, .second = 0.01},
                     .delay = {.law = "uniform", .first = 1, .second = 4}});
  network.drive(many, 1.7, {.weight = 0.09});
  network.drive(few, 6.0, {.weight = 0.05});
  return network;
}

Recording by_threads(int threads) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  Network network = large_network();
  simulation::always_share(network);
  Recording recording = simulate(network, 120);
  at::set_num_threads(before);
  return recording;
}

}  // namespace

TEST_CASE("a copy of a network has the spikes of a network with its noise seed, rate and input") {
  const auto build = [](std::vector<std::int64_t> seeds, const at::Tensor& rate, Population& target) {
    const auto copies = std::ssize(seeds);
    Network network({.seed = 2, .copies = copies, .noise_seeds = std::move(seeds)});
    target = network.populate("a", 50, leaky(), {{"leak", 0.9}});
    network.project(target, target,
                    {.rule = "fixed_in_degree", .amount = 5, .weight = {.first = 0.1}, .delay = {.first = 3}});
    network.drive(target, rate, {.weight = 0.5});
    return network;
  };
  Population a;
  const at::Tensor rates = at::tensor({0.1, 0.3, 0.2}, at::kDouble).unsqueeze(1), values = at::rand({40, 3, 50});
  Network network = build({7, 8, 7}, rates, a);
  const Recording all = simulate(network, 40, {.states = {{a, "v", {3, 4}}}, .inputs = {{a, "", values}}});
  CHECK(network.state(a, "v").sizes() == at::IntArrayRef({3, 50}));
  for (std::int64_t copy = 0; copy < 3; ++copy) {
    Network one = build({copy == 1 ? 8 : 7}, rates[copy][0], a);
    const Recording expected =
        simulate(one, 40, {.states = {{a, "v", {3, 4}}}, .inputs = {{a, "", values.select(1, copy)}}});
    const auto [steps, neurons] = all.of(a, copy);
    CHECK(expected.steps.numel() > 50);
    CHECK(steps.equal(expected.steps));
    CHECK(neurons.equal(expected.neurons));
    CHECK(all.states[0].select(1, copy).equal(expected.states[0]));
  }
}

TEST_CASE("a step has the spikes of a simulation with the same inputs") {
  TestNetwork whole = test_network(true), made = test_network(true);
  const at::Tensor values = at::rand({60, 60}), steps = at::randint(60, {40}, at::kLong),
                   neurons = at::randint(15, {40}, at::kLong), weight = at::scalar_tensor(0.5);
  const std::vector<StepInput> inputs{{whole.a, "", values}, {whole.c, "b", weight, steps, neurons}};
  const Recording recording = simulate(whole.network, 60, {.inputs = inputs});
  at::Tensor spikes = at::zeros({60, whole.network.size()}, at::kBool);
  spikes.index_put_({recording.steps, recording.neurons}, at::ones({}, at::kBool));
  CHECK(recording.steps.numel() > 100);
  CHECK(made.network.step(60, inputs).equal(spikes));
  CHECK_FALSE(test_network(true).network.step(60).equal(spikes));
  CHECK_THROWS_WITH(made.network.step(60, {{made.a, "", values.slice(0, 1)}}),
                    has_text("the input of a must have shape [60, 60], steps and neurons, but has [59, 60]"));
}

TEST_CASE("rates, currents, parameters and states change between steps") {
  Network network({.seed = 1, .dtype = at::kDouble});
  const Neuron neuron(
      "neuron n(x; v; leak) { h = leak * v + x; s = spike(h - 1, none); return s; v' = select(s, 0, h) }");
  const Population p = network.populate("p", 3, neuron, {{"leak", 0.5}});
  const std::size_t drive = network.drive(p, 0.0), current = network.inject(p, 2.0);
  CHECK(network.step(1).all().item<bool>());
  network.set_current(current, 0.0);
  network.set_param(p, "leak", 0.25);
  network.state(p, "v").fill_(0.5);
  CHECK_FALSE(network.step(1).any().item<bool>());
  CHECK(network.state(p, "v").eq(0.125).all().item<bool>());
  CHECK(network.param(p, "leak").equal(at::full({3}, 0.25, at::kDouble)));
  network.drive(p, 1000.0, {.weight = at::tensor({0.0, 0.0, -1e6})});
  network.set_drive(drive, 1000.0);
  network.silence(p, at::tensor({1}, at::kLong));
  CHECK(network.step(1)[0].to(at::kLong).equal(at::tensor({1, 0, 0}, at::kLong)));
  CHECK_THROWS_WITH(network.set_drive(2, 1.0), has_text("there are 2 drives, but no number 2"));
}

TEST_CASE("a network goes on where its state was saved, and pieces of any length are the whole") {
  TestNetwork once = test_network(true), made = test_network(true), resumed = test_network(true);
  const Recording whole = simulate(once.network, 90, with_states(once));
  CHECK(whole.steps.numel() > 200);
  for (const Population* const p : {&once.a, &once.b, &once.c}) {
    const auto [steps, neurons] = whole.of(*p);
    CHECK(steps.numel() > 20);
    CHECK(neurons.max().item<std::int64_t>() < p->size());
  }
  const Recording first = simulate(made.network, 37, with_states(made));
  const std::vector<at::Tensor> saved = made.network.state();
  const Recording rest = simulate(made.network, 53, with_states(made));
  CHECK(same(joined(first, rest), whole));
  CHECK(made.network.step() == 90);
  resumed.network.load_state(saved);
  CHECK(same(simulate(resumed.network, 53, with_states(resumed)), rest));
  TestNetwork other = test_network(true, {.seed = 4, .dtype = at::kDouble});
  CHECK_FALSE(same(simulate(other.network, 90, with_states(other)), whole));
  CHECK(simulate(made.network, 0).steps.numel() == 0);
}

TEST_CASE("any number of threads gives the same spikes") {
  const Recording one = by_threads(1);
  CHECK(one.steps.numel() > 1000);
  for (const int threads : {2, 5}) CHECK(same(by_threads(threads), one));
}

TEST_CASE("columns of a built network ascend, with the weights and delays that were drawn for them") {
  Network network({.seed = 5, .dtype = at::kDouble});
  const Population p = network.populate("p", 30, leaky(), {{"leak", 0.5}});
  const NumberLaw weight{.law = "uniform", .first = 0, .second = 1}, delay{.law = "uniform", .first = 1, .second = 200};
  const Projection how{.rule = "fixed_out_degree", .amount = 50, .weight = weight, .delay = delay};
  network.project(p, p, how);
  const Connectivity& sorted = network.build();
  Projection drawn_how = how;
  drawn_how.sources = drawn_how.targets = {0, 30};
  const Connectivity drawn = connect(30, 30, {drawn_how}, 5, at::kDouble);
  const at::Tensor order = drawn.indices.view({30, 50}).to(at::kLong).argsort(/*stable=*/true, 1, false);
  const auto by_column = [&](const at::Tensor& t) { return t.view({30, 50}).gather(1, order).flatten(); };
  CHECK(at::equal(sorted.indices, by_column(drawn.indices)));
  CHECK(at::equal(sorted.weights, by_column(drawn.weights)));
  CHECK(at::equal(sorted.delays, by_column(drawn.delays)));
}

TEST_CASE("neurons that draw random numbers go on where the state was saved") {
  const Neuron noisy(
      "neuron noisy(x; v) { h = 0.9 * v + x + 0.3 * normal(); s = spike(h - 1, none); return s; "
      "v' = select(s, 0, h) }");
  const auto build = [&] {
    Network network({.seed = 8});
    network.populate("p", 50, noisy);
    return network;
  };
  Network once = build(), made = build();
  const Recording whole = simulate(once, 60);
  CHECK(whole.steps.numel() > 20);
  const Recording first = simulate(made, 20);
  CHECK(same(joined(first, simulate(made, 40)), whole));
}

// tests/python/network/test_simulation.py tests all other errors, which the same code raises.
TEST_CASE("what only C++ can say wrongly of a network is refused") {
  Network network;
  const Population p = network.populate("p", 3, leaky(), {{"leak", 0.5}});
  CHECK_THROWS_WITH(network.drive({"e", 0, 5}, 1.0), has_text("e, neurons 0 to 5, is no population of this network"));
  CHECK_THROWS_WITH(network.project(p, p, {.rule = "some"}),
                    has_text("Network: p to p: a rule must be \"all_to_all\""));
  CHECK_THROWS_WITH(network.drive(p, 1.0, {.weight = at::ones({4})}),
                    has_text("Network: weight of p must be a number or have shape [3], but has [4]"));
  CHECK_THROWS_WITH(network.populate("q", 3, Neuron("neuron n(x; v) { return v; v' = 0.9 * v + x }")),
                    has_text("Network: the first output of the neuron of q must be a spike"));
  CHECK_THROWS_WITH(Network({.dtype = at::kHalf}), has_text("but are Half and Half"));
  network.project(p, p, {});
  CHECK(network.build().indices.numel() == 9);
}

}  // namespace spikeforge::test
