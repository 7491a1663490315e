// The C++ functions of fused layers.
#include "ops/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/catch.h"

namespace spikeforge::test {

TEST_CASE("a layer is torch's batch norm, the neuron and the residual, one after the other") {
  const Neuron smooth("neuron smooth(x; v; tau) { h = v + (x - v) / tau; return sigmoid(h - 1); v' = 0.5 * h }");
  const at::Tensor x = at::rand({5, 3, 4, 6}, at::kDouble).requires_grad_(true);
  const at::Tensor r = at::rand({5, 3, 4, 6}, at::kDouble).requires_grad_(true);
  const at::Tensor weight = at::rand({4}, at::kDouble).requires_grad_(true);
  const at::Tensor tau = at::scalar_tensor(2., at::kDouble);
  const auto [outputs, states, mean, var] =
      batch_norm_run(smooth, {x}, {}, {tau}, {.weight = weight, .eps = .01}, ResidualConnection{r, "iand"});
  const at::Tensor y =
      at::batch_norm(x.flatten(0, 1), weight, {}, {}, {}, /*training=*/true, 0, .01, false).view(x.sizes());
  const auto [expected, expected_states] = smooth({y}, {}, {tau});
  REQUIRE(outputs.size() == 1);
  REQUIRE(states.size() == 1);
  const at::Tensor joined = (1 - expected[0]) * r;
  CHECK(at::allclose(outputs[0], joined, 1e-10, 1e-10));
  CHECK(at::allclose(states[0], expected_states[0], 1e-10, 1e-10));
  CHECK(at::allclose(mean, x.mean({0, 1, 3})));
  CHECK(at::equal(var, std::get<1>(channel_statistics(x))));
  const auto [alone, no_states, same_mean, same_var] =
      batch_norm_run(smooth, {x}, {}, {tau}, {.weight = weight, .eps = .01}, ResidualConnection{r, "iand"},
                     /*store_states=*/false, /*last_states=*/false);
  CHECK(no_states.empty());
  CHECK(at::equal(alone[0], outputs[0]));
  const auto found = torch::autograd::grad({outputs[0].square().sum()}, {x, r, weight});
  const auto wanted = torch::autograd::grad({joined.square().sum()}, {x, r, weight});
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::allclose(found[i], wanted[i], 1e-9, 1e-9));
}

TEST_CASE("a layer in evaluation normalises with the statistics that it is given") {
  const Neuron plain("neuron plain(x; ) { return relu(x) }");
  const at::Tensor x = at::rand({2, 3, 4}), mean = at::rand({4}), var = at::rand({4}) + .5;
  const auto [outputs, states, used_mean, used_var] = batch_norm_run(plain, {x}, {}, {}, {.mean = mean, .var = var});
  CHECK(states.empty());
  CHECK(at::equal(used_mean, mean));
  CHECK(at::allclose(outputs[0], ((x - mean) / (var + 1e-5).sqrt()).relu()));
}

TEST_CASE("products of spikes and their gradients are torch's") {
  const at::Tensor x = at::rand({3, 4, 9, 9}).gt(.5).to(at::kFloat), weight = at::rand({6, 2, 3, 3});
  const at::Tensor bias = at::rand({6}).requires_grad_(true);
  weight.requires_grad_(true);
  const at::Tensor y = convolution(x, weight, bias, {.stride = {2}, .padding = {1, 0}, .groups = 2});
  const at::Tensor expected = at::conv2d(x, weight, bias, {2, 2}, {1, 0}, 1, 2);
  CHECK(at::allclose(y, expected));
  const auto found = torch::autograd::grad({y.square().sum()}, {weight, bias});
  const auto wanted = torch::autograd::grad({expected.square().sum()}, {weight, bias});
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::allclose(found[i], wanted[i], 1e-4, 1e-4));
  const at::Tensor matrix = at::rand({5, 9}).requires_grad_(true);
  CHECK(at::equal(spikeforge::linear(x, matrix), at::linear(x, matrix)));
  CHECK_THROWS_AS(spikeforge::linear(x * 3, matrix), c10::ValueError);
  CHECK_NOTHROW(spikeforge::linear(x * 3, matrix, {}, 4));
}

}  // namespace spikeforge::test
