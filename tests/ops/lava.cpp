// The C++ functions of Loihi's neurons and connections. Their results are tested in tests/python/loihi/test_loihi.py.
#include "ops/loihi.h"
#include "ops/traced.h"

#include <ATen/ATen.h>

#include "tests/catch.h"

namespace spikeforge::test {
namespace {

at::Tensor ints(at::IntArrayRef values) { return at::tensor(values, at::kLong).to(at::kInt); }

}  // namespace

TEST_CASE("Lava's table of the fixed-point neuron is that of loihi_lif, at once and in steps") {
  const at::Tensor x = at::zeros({10, 1}, at::kInt);
  const LoihiResults whole = loihi_lif(x, {}, {.bias_mant = 2, .bias_exp = 6, .vth = 8});
  REQUIRE(whole.spikes.nonzero().select(1, 0).equal(at::tensor({4, 9}, at::kLong)));
  REQUIRE(!whole.counter.defined());

  LoihiState state;
  for (std::int64_t t = 0; t < 10; ++t) {
    const LoihiResults step = loihi_lif(x.narrow(0, t, 1), state, {.bias_mant = ints({2}), .bias_exp = 6, .vth = 8});
    REQUIRE(step.spikes[0].equal(whole.spikes[t]));
    state = {step.u, step.v, {}};
  }
}

TEST_CASE("a periodic reset and a refractory period have a counter among their states") {
  const at::Tensor x = at::zeros({7, 1}, at::kInt);
  const LoihiOptions reset{.bias_mant = 64, .vth = 1000, .form = LoihiForm::reset, .reset_interval = 3};
  REQUIRE(loihi_lif(x, {}, reset).counter.item<int>() == 7 % 3);
  REQUIRE(loihi_lif(x, {}, reset).v.item<int>() == 2 * 64);  // reset before step 6
  const LoihiOptions refractory{
      .bias_mant = 64, .vth = 0, .form = LoihiForm::refractory, .refractory_period = 2, .store_states = true};
  REQUIRE(loihi_lif(x, {}, refractory).spikes.flatten().equal(ints({1, 0, 0, 1, 0, 0, 1})));
  REQUIRE(loihi_lif(x, {}, refractory).counter.flatten().equal(ints({2, 1, 0, 2, 1, 0, 2})));
  REQUIRE(loihi_ternary_lif(x, {}, {.bias_mant = -64, .vth_lo = 0}).spikes.eq(-1).all().item<bool>());
}

TEST_CASE("connections of either kind deliver their weights after their delay") {
  const at::Tensor weight = loihi_prepare_weights(at::tensor({3.9, -300.0, -7.0, 0.0}).view({2, 2}));
  REQUIRE(weight.flatten().equal(ints({2, -256, -8, 0})));
  const at::Tensor x = ints({1, 0, 0, 1, 1, 1}).view({3, 2});
  const Arrivals dense = loihi_dense(x, weight, {}, {.delay = 2});
  REQUIRE(dense.y.flatten().equal(ints({0, 0, 0, 0, 2, -8})));
  REQUIRE(dense.buffer.flatten().equal(ints({-256, 0, -254, -8})));
  const Arrivals sparse = loihi_sparse(x, at::tensor({0, 2, 3}, at::kLong), at::tensor({0, 1, 0}, at::kLong),
                                       ints({2, -256, -8}), {}, {.delay = 2});
  REQUIRE(sparse.y.equal(dense.y));
  REQUIRE(sparse.buffer.equal(dense.buffer));
  const Arrivals delayed = loihi_delay_dense(x, weight, at::ones_like(weight), 1);
  REQUIRE(delayed.y.equal(dense.y));
  REQUIRE(delayed.buffer.equal(dense.buffer));
}

TEST_CASE("a layer is quantised with its worst errors") {
  const FixedLayer fixed =
      loihi_quantize({.weight = at::tensor({0.5, -1.0}).view({1, 2}), .bias = at::tensor({0.25}), .tau = 2});
  // Scaled by 1 / tau and so that the largest weight is 254. The weight 0.5 becomes 127, which is rounded to an even
  // number.
  REQUIRE(fixed.weight.flatten().equal(ints({128, -254})));
  REQUIRE(fixed.weight_error < 0.5 / 127);
  REQUIRE(fixed.dv == 2048);
  REQUIRE(fixed.decay_error == 0);
  REQUIRE(static_cast<double>(fixed.vth) == std::round(fixed.scale));
  REQUIRE_THROWS_AS(loihi_quantize({.weight = at::zeros({1, 1}), .tau = 0.5}), c10::ValueError);
}

TEST_CASE("Lava's neurons are texts, in floating point and in fixed point") {
  for (const char* name : {"lif", "ternary_lif", "lif_reset", "lif_refractory", "sigma"})
    REQUIRE_NOTHROW(Neuron(lava_neuron(name)));
  for (const char* name : {"lif", "ternary_lif_reset", "lif_refractory"})
    REQUIRE_NOTHROW(Neuron(loihi_neuron(name, "atan", {2.0})));
  for (const char* name : {"atrlif", "rf", "delta", "sigma_delta", "sigma_delta_unit"}) {
    REQUIRE_NOTHROW(Neuron(lava_neuron(name)));
    REQUIRE_NOTHROW(Neuron(loihi_neuron(name)));
  }
  REQUIRE_THROWS_AS(loihi_neuron("sigma"), c10::ValueError);
}

TEST_CASE("a step of training in fixed point has the integers' spikes, and a gradient for each parameter") {
  at::manual_seed(20263);
  const at::Tensor x = at::randint(0, 2, {9, 5, 6}, at::kInt);
  const at::Tensor weight = at::randn({4, 6}).requires_grad_(), bias = at::arange(4, at::kFloat).requires_grad_();
  const at::Tensor prepared = loihi_fake_quantize(weight * 64);
  const LoihiConnectionOptions at_once{.delay = 0};
  const auto spikes_of = [&](const at::Tensor& messages, const at::Tensor& weights, const at::Tensor& mant) {
    return loihi_lif(loihi_dense(messages, weights, {}, at_once).y, {}, {.dv = 300, .bias_mant = mant, .vth = 40})
        .spikes;
  };
  const at::Tensor spikes = spikes_of(x.to(at::kFloat), prepared, bias);
  REQUIRE(spikes.to(at::kInt).equal(spikes_of(x, prepared.detach().to(at::kInt), bias.detach().to(at::kInt))));
  spikes.sum().backward();
  REQUIRE(weight.grad().abs().sum().item<double>() > 0);
  REQUIRE(bias.grad().abs().min().item<double>() > 0);
}

TEST_CASE("a convolution in fixed point wraps around at 24 bits") {
  const at::Tensor x = at::full({1, 1, 1, 2}, 1 << 15, at::kInt), weight = at::full({1, 1, 1, 2}, 128, at::kInt);
  const LoihiConnectionOptions options{.delay = 0, .num_message_bits = 17};
  REQUIRE(loihi_conv(x, weight, {}, {}, options).y.item<int>() == -(1 << 23));
  REQUIRE(
      loihi_conv(x, weight, {.padding = {0, 1}}, {}, options).y.flatten().equal(ints({1 << 22, -(1 << 23), 1 << 22})));
}

TEST_CASE("weights in the fewest bits have an exponent that makes up for it") {
  const OptimizedWeights optimized = loihi_optimize_weight_bits(ints({1, 2, 3}));
  REQUIRE(optimized.weights.equal(ints({64, 128, 192})));
  REQUIRE(optimized.num_weight_bits == 2);
  REQUIRE(optimized.weight_exp == -6);
}

}  // namespace spikeforge::test
