// The C++ functions of custom neurons.
#include "ops/traced.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/catch.h"
#include "tests/ops/calls.h"

namespace spikeforge::test {
namespace {

Neuron leaky_neuron() {
  return trace("leaky", {"x"}, {"v"}, {"tau", "v_threshold", "v_reset"},
               [](Value x, Value v, Value tau, Value v_threshold, Value v_reset) {
                 const Value h = v + 1 / tau * (x - (v - v_reset));
                 const Value s = spike(h - v_threshold, surrogate::sigmoid(4));
                 return step({s}, {select(s, v_reset, h)});
               });
}

Tensor number(double value) { return at::scalar_tensor(value); }

}  // namespace

TEST_CASE("a traced LIF is the predefined one") {
  const Tensor x = at::rand({13, 5, 7}).mul(3).requires_grad_(true);
  const Tensor v = at::rand({5, 7}).requires_grad_(true);
  const Tensor tau = at::full({7}, 2.5).requires_grad_(true);
  const auto [outputs, states] = leaky_neuron()({x}, {v}, {tau, number(.9), number(.1)});
  const auto [spikes, last] = lif(x, v, {.tau = tau, .v_threshold = .9, .v_reset = .1});
  REQUIRE(outputs.size() == 1);
  REQUIRE(states.size() == 1);
  CHECK(at::equal(outputs[0], spikes));
  CHECK(at::equal(states[0], last));
  const auto got = torch::autograd::grad({outputs[0].sum(), states[0].sum()}, {x, v, tau});
  const auto wanted = torch::autograd::grad({spikes.sum(), last.sum()}, {x, v, tau});
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].allclose(wanted[i], 1e-4, 1e-5));
}

TEST_CASE("a neuron is its text") {
  const Neuron traced = leaky_neuron();
  const Neuron read(traced.text());
  CHECK(read.text() == traced.text());
  const Tensor x = at::rand({6, 4}).mul(3);
  const std::vector<Tensor> params = {number(2), number(1), number(0)};
  const auto [a, v] = traced({x}, {}, params, /*store_states=*/true);
  const auto [b, w] = read({x}, {at::zeros({4})}, params, /*store_states=*/true);
  CHECK(at::equal(a[0], b[0]));
  CHECK(at::equal(v[0], w[0]));
  CHECK(v[0].sizes() == x.sizes());
}

TEST_CASE("captured numbers are constants, and arguments may be counted rather than named") {
  const double decay = .5;
  const Neuron filter = trace("filter", 1, 1, 0, [decay](Value x, Value v) {
    const Value next = decay * v + x;
    return step({next}, {next});
  });
  const auto [y, v] = filter({at::full({3, 2}, 1.)});
  CHECK(y[0][2][0].item<double>() == 1.75);
  CHECK(v[0][1].item<double>() == 1.75);
}

TEST_CASE("a neuron prints its kernels where there is no GPU") {
  const std::string source = leaky_neuron().print_cuda();
  for (const char* piece : {"// leaky(x; v; tau, v_threshold, v_reset)", "using Input = float;", "spikeforge_forward(",
                            "spikeforge_backward("})
    CHECK_THAT(source, has_text(piece));
  CHECK_THAT(leaky_neuron().print_cuda(at::kBFloat16), has_text("using Input = bf16;"));
  CHECK_THROWS_AS(leaky_neuron().print_cuda(at::kLong), c10::TypeError);
}

TEST_CASE("a text that is not legal is a ValueError with its place") {
  const std::string place = message_of<c10::ValueError>([] { Neuron("neuron n(x) {\n  return x +\n}"); });
  CHECK(place.find("line 2, column 13: ") != std::string::npos);
  CHECK(place.find('^') != std::string::npos);
  const std::string words = message_of<c10::ValueError>([] { leaky_neuron()({at::rand({3, 2})}); });
  CHECK(words.find("run(leaky): params must have 3 tensors") == 0);
}

}  // namespace spikeforge::test
