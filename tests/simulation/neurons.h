// A network of two kinds of neuron, one of them with two inputs, with a weight and a delay for each connection.
#pragma once

#include "csrc/simulation/network.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>

#include <algorithm>

namespace spikeforge::test {

inline Neuron leaky() {
  return Neuron(R"(neuron lif(x; v = 0.1, wait; leak) {
    h = leak * v + x
    resting = wait > 0
    s = where(resting, 0, spike(h - 1, none))
    return s
    v' = where(resting, v, select(s, 0, h))
    wait' = select(s, 3, maximum(wait - 1, 0))
  })");
}

inline Neuron with_two_inputs() {
  return Neuron(
      "neuron two(a, b; v) { h = 0.8 * v + a - b; s = spike(h - 1, none); return s, h; v' = select(s, 0, h) }");
}

struct TestNetwork {
  Network network;
  Population a, b, c;
};

inline TestNetwork test_network(bool driven, const NetworkOptions& options = {.seed = 3, .dtype = at::kDouble}) {
  TestNetwork made{Network(options), {}, {}, {}};
  Network& network = made.network;
  made.a = network.populate("a", 60, leaky(), {{"leak", 0.9}}, {{"v", at::linspace(0, 0.9, 60, at::kDouble)}});
  made.b = network.populate("b", 25, leaky(), {{"leak", at::linspace(0.8, 0.95, 25, at::kDouble)}});
  made.c = network.populate("c", 15, with_two_inputs());
  const NumberLaw weight{.law = "normal", .first = 0.12, .second = 0.03};
  const NumberLaw delay{.law = "uniform", .first = 1, .second = 9};
  for (const Population* const source : {&made.a, &made.b, &made.c})
    for (const Population* const target : {&made.a, &made.b, &made.c}) {
      const auto amount = static_cast<double>(4 * target->size());
      network.project(*source, *target, {.rule = "fixed_total", .amount = amount, .weight = weight, .delay = delay});
    }
  network.project(made.a, made.c,
                  {.rule = "fixed_in_degree", .amount = 3, .weight = {.first = 0.1}, .delay = {.first = 4}}, "b");
  network.inject(made.a, 0.07);
  network.inject(made.c, at::linspace(0.1, 0.3, 15, at::kDouble), "a");
  if (driven) {
    network.drive(made.a, 0.3, {.weight = 0.2});
    network.drive(made.b, at::linspace(0.5, 2, 25, at::kDouble), {.weight = 0.2});
    network.drive(made.c, 0.5, {.weight = 0.4, .into = "a"});
    network.drive(made.c, 20.0, {.weight = 0.01, .into = "b"});
  }
  return made;
}

inline bool same(const Recording& a, const Recording& b) {
  return at::equal(a.steps, b.steps) && at::equal(a.neurons, b.neurons) &&
         std::ranges::equal(a.states, b.states,
                            [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

}  // namespace spikeforge::test
