// The C++ functions of online learning.
#include "ops/online.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/catch.h"
#include "tests/ops/calls.h"

namespace spikeforge::test {
namespace {

const Neuron& two_states() {
  static const Neuron neuron = trace("two", {"x"}, {"v", "a"}, {"tau"}, [](Value x, Value v, Value a, Value tau) {
    const Value h = v + (x - v) / tau;
    const Value s = spike(h - (1 + a), surrogate::atan(2));
    return step({s}, {select(s, 0, h), 0.9 * a + s});
  });
  return neuron;
}

}  // namespace

TEST_CASE("pieces of a sequence sum to the gradient of backpropagation through time") {
  const auto f64 = at::TensorOptions(at::kDouble);
  const Tensor x = 3 * at::randn({8, 2, 5}, f64), grad = at::randn({8, 2, 4}, f64);
  const Tensor w = at::randn({4, 5}, f64).requires_grad_(true), b = at::randn({4}, f64).requires_grad_(true);
  const Tensor tau = at::scalar_tensor(2, f64).requires_grad_(true);
  const auto [spikes, last] = two_states()({at::linear(x, w, b)}, {}, {tau});
  const auto wanted = torch::autograd::grad({(spikes[0] * grad).sum()}, {w, b, tau});

  OnlineLayer now;
  std::vector<Tensor> got, pieces;
  for (std::int64_t t = 0; t < 8; t += 2) {
    now = online_linear(two_states(), x.narrow(0, t, 2), w, b, now.states, {tau}, now.traces);
    const auto grads = torch::autograd::grad({(now.outputs[0] * grad.narrow(0, t, 2)).sum()}, {w, b, tau});
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (t == 0)
        got.push_back(grads[i]);
      else
        got[i] = got[i] + grads[i];
    pieces.push_back(now.outputs[0]);
  }
  CHECK(at::equal(at::cat(pieces), spikes[0]));
  CHECK(at::equal(now.states[1], last[1]));
  REQUIRE(now.traces.size() == 6);  // for weight, bias and tau, with two states each
  CHECK(now.traces[0].sizes() == at::IntArrayRef({2, 4, 5}));
  CHECK(now.traces[2].sizes() == at::IntArrayRef({2, 4}));
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(wanted[i].abs().max().item<double>() > 0);
    CHECK(got[i].allclose(wanted[i], 1e-10, 1e-10));
  }
}

TEST_CASE("traces of inputs are as large as the input") {
  const Tensor x = at::randn({3, 2, 5}), w = at::randn({4, 5}).requires_grad_(true), tau = at::scalar_tensor(2.f);
  const OnlineOptions options{.traces = OnlineTraces::ottt};
  const OnlineLayer first = online_linear(two_states(), x, w, {}, {}, {tau}, {}, options);
  const OnlineLayer second = online_linear(two_states(), x, w, {}, first.states, {tau}, first.traces, options);
  REQUIRE(second.traces.size() == 2);
  CHECK(second.traces[0].sizes() == at::IntArrayRef({2, 5}));
  CHECK_FALSE(second.traces[0].requires_grad());
  CHECK_THROWS_AS(online_linear(two_states(), x, w, {}, {}, {at::randn({4})}, {}, options), c10::ValueError);
}

}  // namespace spikeforge::test
