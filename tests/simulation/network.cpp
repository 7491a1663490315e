// Networks from C++, beside a dense loop in float64.
#include "csrc/simulation/internal/thread_choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>

#include "tests/catch.h"
#include "tests/simulation/neurons.h"

namespace spikeforge::test {
namespace {

struct Dense {
  std::vector<std::int64_t> steps, neurons;
  at::Tensor v;  // [steps, 100]
};

// The network without drive, by a matrix for each delay: what arrives is the sum over delays of the spikes so many
// steps ago.
Dense dense_loop(Network& network, std::int64_t count) {
  const Connectivity& m = network.build();
  const at::Tensor row = at::arange(100).repeat_interleave(m.indptr.diff());
  const at::Tensor matrices =
      at::zeros({10, 100, 200}, at::kDouble)
          .index_put_({m.delays.to(at::kLong), row, m.indices.to(at::kLong)}, m.weights, /*accumulate=*/true);
  at::Tensor v =
      at::cat({at::linspace(0, 0.9, 60, at::kDouble), at::full({25}, 0.1, at::kDouble), at::zeros({15}, at::kDouble)});
  const at::Tensor leak = at::cat(
      {at::full({60}, 0.9, at::kDouble), at::linspace(0.8, 0.95, 25, at::kDouble), at::full({15}, 0.8, at::kDouble)});
  at::Tensor wait = at::zeros({100}, at::kDouble);
  std::vector<at::Tensor> past, voltages;
  Dense dense;
  for (std::int64_t t = 0; t < count; ++t) {
    at::Tensor arriving = at::zeros({200}, at::kDouble);
    for (std::int64_t d = 1; d <= std::min<std::int64_t>(9, t); ++d)
      arriving += past[static_cast<std::size_t>(t - d)].matmul(matrices[d]);
    at::Tensor x = arriving.slice(0, 0, 100).clone();
    x.slice(0, 0, 60).add_(0.07);
    x.slice(0, 85).add_(at::linspace(0.1, 0.3, 15, at::kDouble)).sub_(arriving.slice(0, 185));
    const at::Tensor h = leak * v + x, rests = wait.gt(0), fires = h.ge(1).logical_and(rests.logical_not());
    v = at::where(rests, v, at::where(fires, 0.0, h));
    wait = at::where(fires, 3.0, (wait - 1).clamp_min(0));
    wait.slice(0, 85).zero_();  // the neurons of c are never refractory
    past.push_back(fires.to(at::kDouble));
    voltages.push_back(v);
    const at::Tensor who = fires.nonzero().select(1, 0);
    for (std::int64_t i = 0; i < who.numel(); ++i) {
      dense.steps.push_back(t);
      dense.neurons.push_back(who[i].item<std::int64_t>());
    }
  }
  dense.v = at::stack(voltages);
  return dense;
}

bool same(const Recording& a, const Recording& b) {
  if (!at::equal(a.steps, b.steps) || !at::equal(a.neurons, b.neurons) || a.states.size() != b.states.size())
    return false;
  for (std::size_t i = 0; i < a.states.size(); ++i)
    if (!at::equal(a.states[i], b.states[i])) return false;
  return true;
}

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

TEST_CASE("a network is its dense loop") {
  TestNetwork made = test_network(/*driven=*/false);
  std::vector<std::int64_t> all(60);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const Recording recording = simulate(made.network, 150, {.states = {{made.a, "v", all}, {made.c, "v", {0, 14}}}});
  const Dense dense = dense_loop(made.network, 150);
  CHECK(at::equal(recording.steps, at::tensor(dense.steps, at::kLong)));
  CHECK(at::equal(recording.neurons, at::tensor(dense.neurons, at::kLong)));
  CHECK(at::allclose(recording.states[0], dense.v.slice(1, 0, 60), 0, 1e-12));
  CHECK(at::allclose(recording.states[1].select(1, 1), dense.v.select(1, 99), 0, 1e-12));
  for (const Population* const p : {&made.a, &made.b, &made.c}) {
    const auto [steps, neurons] = recording.of(*p);
    CHECK(steps.numel() > 20);
    CHECK(neurons.max().item<std::int64_t>() < p->size());
  }
  CHECK(made.network.step() == 150);
}

TEST_CASE("a network goes on where its state was saved, and pieces of any length are the whole") {
  TestNetwork once = test_network(true), made = test_network(true), resumed = test_network(true);
  const Recording whole = simulate(once.network, 90, with_states(once));
  CHECK(whole.steps.numel() > 200);
  const Recording first = simulate(made.network, 37, with_states(made));
  const std::vector<at::Tensor> saved = made.network.state();
  const Recording rest = simulate(made.network, 53, with_states(made));
  CHECK(same(joined(first, rest), whole));
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

TEST_CASE("an illegal network is refused") {
  TestNetwork made = test_network(true);
  Network& network = made.network;
  const auto refuses = [](const std::function<void()>& call, const std::string& words) {
    try {
      call();
    } catch (const c10::Error& error) {
      INFO(error.what_without_backtrace());
      CHECK(std::string(error.what_without_backtrace()).find(words) != std::string::npos);
      return;
    }
    FAIL("nothing was refused, but it should say: " << words);
  };
  refuses(
      [&] {
        network.populate("d", 5, leaky(), {{"leak", 1.0}, {"beta", 2.0}});
      },
      "the neuron of d has no parameter beta; it has leak");
  refuses([&] { network.populate("d", 5, leaky()); }, "the parameter leak of d is not given");
  refuses(
      [&] {
        network.populate("d", 5, leaky(), {{"leak", 1.0}}, {{"v", at::zeros({4})}});
      },
      "v of d must be a number or have shape [5], but has [4]");
  refuses(
      [&] {
        network.populate("d", -1, leaky(), {{"leak", 1.0}});
      },
      "the size of d must not be negative, but is -1");
  refuses([&] { network.drive(made.a, -1.0); }, "the rate that drives a must be finite and not negative, but is -1");
  refuses([&] { network.inject(made.c, 1.0, "z"); }, "the neuron of c has no input z; its inputs: a, b");
  refuses([&] { network.drive({"e", 0, 3}, 1.0); }, "e, neurons 0 to 3, is no population of this network");
  refuses([&] { simulate(network, -1); }, "simulate: steps must not be negative, but is -1");
  refuses(
      [&] {
        simulate(network, 1, {.states = {{made.a, "u", {0}}}});
      },
      "the neuron of a has no state u; it has v, wait");
  refuses(
      [&] {
        simulate(network, 1, {.states = {{made.c, "v", {15}}}});
      },
      "neurons of c must be numbers from 0 to 14, but one is 15");
  refuses(
      [&] {
        network.populate("d", 5, leaky(), {{"leak", 1.0}});
      },
      "populate must come before the network is built");
  refuses([&] { network.load_state({}); }, "tensors, those of this network, but has 0");
  std::vector<at::Tensor> state = network.state();
  for (const std::int64_t step : {std::int64_t{-5}, (std::int64_t{1} << 62)}) {
    state[1].fill_(step);
    refuses([&] { network.load_state(state); },
            "a state's step must be from 0 to 2^62, but is " + std::to_string(step));
  }
  Network wide;
  wide.populate("w", 3, with_two_inputs());
  refuses(
      [&] {
        wide.populate("d", std::int64_t{1} << 30, leaky(), {{"leak", 1.0}});
      },
      "d has 1073741824 neurons, but a network whose neurons have 2 inputs has at most 1073741823, and this one has 3");
  refuses([] { Network({.dtype = at::kHalf}); }, "but states are Half beside weights in Half");
  Network described;
  const Population p = described.populate("p", 3, leaky(), {{"leak", 0.5}});
  const Population q = described.populate("q", 2, leaky(), {{"leak", 0.5}});
  const auto refuses_projection = [&](const Projection& how, const std::string& words) {
    refuses([&] { described.project(p, q, how); }, "Network: p to q: " + words);
  };
  refuses_projection({.delay = {.first = 0}}, "a delay must be from 1 to 2^31 steps, but is 0");
  refuses_projection({.rule = "one_to_one"}, "one_to_one needs as many targets as sources, 3, but has 2");
  refuses_projection({.rule = "some"}, "a rule must be \"all_to_all\"");
  refuses_projection({.weight = {.law = "array"}, .weights = at::ones({6})},
                     "a weight for each connection needs the rule");
  refuses_projection({.rule = "arrays", .source_indices = at::tensor({3}), .target_indices = at::tensor({0})},
                     "sources must be from 0 to 2, the neurons of their range, but are from 3 to 3");
  refuses(
      [&] {
        described.project(
            p, q, {.weight = {.first = -0.5}},
            Plasticity{"synapse s(w;; least) { on pre { w' = clamp(w + 1, least, 2) } }", {{"least", 0}}});
      },
      "Network: p to q: weights are -0.5, but the rule s keeps them from 0 to 2");
  described.project(q, p, {});
  CHECK(described.build().indices.numel() == 6);
}

}  // namespace spikeforge::test
