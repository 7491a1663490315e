// The operators as C++ calls them, at the sizes and layouts where a loop over memory goes wrong: these tests are what
// the sanitizers see of the CPU kernels. The mathematics is tested in tests/python.
#include <spikeforge/ops/neuron.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <functional>
#include <string>
#include <vector>

#include "catch.h"

namespace {

using at::Tensor;
using spikeforge::MaybeTensor;
using Results = std::vector<Tensor>;

// Values of both signs that make a neuron fire now and then, the same on every machine.
Tensor wave(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return (at::linspace(0, 40, c10::multiply_integers(shape), at::kDouble).sin() * 2 + 0.5).view(shape).to(dtype);
}

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(true); }

struct Neuron {
  std::string name;
  std::function<Results(const Tensor& x, bool hard_reset, bool store_v)> call;
};

std::optional<spikeforge::Param> reset_to(bool hard_reset, double value) {
  if (!hard_reset) return {};
  return spikeforge::Param(value);
}

Results listed(std::tuple<Tensor, Tensor> r) { return {std::get<0>(r), std::get<1>(r)}; }
Results listed(std::tuple<Tensor, Tensor, Tensor> r) { return {std::get<0>(r), std::get<1>(r), std::get<2>(r)}; }

std::vector<Neuron> neurons() {
  using namespace spikeforge;
  return {
      {"integrate_and_fire",
       [](const Tensor& x, bool hard, bool store_v) {
         return listed(integrate_and_fire(x, {}, {.v_reset = reset_to(hard, 0.), .store_v = store_v}));
       }},
      {"lif",
       [](const Tensor& x, bool hard, bool store_v) {
         return listed(lif(x, {}, {.v_reset = reset_to(hard, 0.), .store_v = store_v}));
       }},
      {"plif",
       [](const Tensor& x, bool hard, bool store_v) {
         const Tensor w = at::zeros({}, x.scalar_type()).requires_grad_(true);
         return listed(plif(x, w, {}, {.v_reset = reset_to(hard, 0.), .store_v = store_v}));
       }},
      {"qif",
       [](const Tensor& x, bool hard, bool store_v) {
         return listed(qif(x, {}, {.v_reset = reset_to(hard, -.1), .store_v = store_v}));
       }},
      {"eif",
       [](const Tensor& x, bool hard, bool store_v) {
         return listed(eif(x, {}, {.v_reset = reset_to(hard, -.1), .store_v = store_v}));
       }},
      {"izhikevich",
       [](const Tensor& x, bool hard, bool store_v) {
         return listed(izhikevich(x, {}, {}, {.v_reset = reset_to(hard, 0.), .a = .1, .b = .1, .store_v = store_v}));
       }},
  };
}

// LIF with decay_input and hard reset to 0, from the equations, in float64.
Tensor lif_reference(const Tensor& x, double tau, double v_threshold) {
  const Tensor in = x.to(at::kDouble).contiguous();
  Tensor spikes = at::zeros_like(in);
  const int64_t steps = in.size(0), neurons = in.numel() / steps;
  for (int64_t n = 0; n < neurons; ++n) {
    double v = 0;
    for (int64_t t = 0; t < steps; ++t) {
      const double h = v + (in.data_ptr<double>()[t * neurons + n] - v) / tau;
      const bool fires = h >= v_threshold;
      spikes.data_ptr<double>()[t * neurons + n] = fires ? 1 : 0;
      v = fires ? 0 : h;
    }
  }
  return spikes;
}

}  // namespace

TEST_CASE("every neuron runs forward and backward at any number of steps and neurons, in every type") {
  for (const Neuron& neuron : neurons()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const int64_t steps : {0, 1, 17}) {
        for (const int64_t size : {0, 1, 7, 33}) {
          for (const bool hard_reset : {true, false}) {
            for (const bool store_v : {true, false}) {
              INFO(neuron.name << " T=" << steps << " N=" << size << " hard_reset=" << hard_reset
                               << " store_v=" << store_v << " " << toString(dtype));
              const Tensor x = leaf(wave({steps, size}, dtype));
              const Results results = neuron.call(x, hard_reset, store_v);
              REQUIRE(results[0].sizes() == x.sizes());
              REQUIRE(results[0].scalar_type() == dtype);
              REQUIRE(((results[0] == 0) | (results[0] == 1)).all().item<bool>());
              Tensor loss = results[0].to(at::kDouble).sum();
              for (std::size_t i = 1; i < results.size(); ++i) {
                REQUIRE(results[i].sizes() == (store_v ? x.sizes() : x.sizes().slice(1)));
                loss = loss + results[i].to(at::kDouble).sum();
              }
              loss.backward();
              if (steps == 0) continue;  // nothing depends on an empty x
              REQUIRE(x.grad().defined());
              REQUIRE(x.grad().sizes() == x.sizes());
              REQUIRE(x.grad().isfinite().all().item<bool>());
              if (size > 0) REQUIRE(x.grad().abs().sum().item<double>() > 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the spikes of LIF are those of its equations") {
  const Tensor x = wave({50, 37}, at::kDouble);
  const Tensor spikes = std::get<0>(spikeforge::lif(x, {}, {.tau = 1.7, .v_threshold = 0.6}));
  REQUIRE(spikes.sum().item<double>() > 0);
  REQUIRE(at::equal(spikes, lif_reference(x, 1.7, 0.6)));
}

TEST_CASE("a channels-last x gives the same values in its own layout") {
  const Tensor x = wave({5, 3, 4, 7});
  const Tensor other = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
  const Tensor spikes = std::get<0>(spikeforge::lif(x)), others = std::get<0>(spikeforge::lif(other));
  REQUIRE(others.strides() == other.strides());
  REQUIRE(at::equal(spikes, others));
}

TEST_CASE("a slice with odd strides gives what its copy gives, forward and backward") {
  const Tensor whole = leaf(wave({9, 5, 11}));
  const Tensor slice = whole.slice(2, 1, 10, 2).slice(1, 1, 5);
  std::get<0>(spikeforge::lif(slice)).sum().backward();

  const Tensor copy = leaf(slice.contiguous());
  std::get<0>(spikeforge::lif(copy)).sum().backward();
  REQUIRE(at::equal(whole.grad().slice(2, 1, 10, 2).slice(1, 1, 5), copy.grad()));
}

TEST_CASE("an expanded gradient is read through its zero strides") {
  const Tensor x = leaf(wave({12, 6, 5})), y = leaf(x);
  std::get<0>(spikeforge::lif(x)).sum().backward();
  const Tensor spikes = std::get<0>(spikeforge::lif(y));
  spikes.backward(at::ones_like(spikes));
  REQUIRE(at::equal(x.grad(), y.grad()));
}

TEST_CASE("a parameter a channel, an initial state and a threshold each get a gradient of their own shape") {
  const Tensor x = leaf(wave({8, 4, 3, 5})), v = leaf(wave({4, 3, 5})), tau = leaf(at::full({4, 1, 1}, 1.5)),
               v_threshold = leaf(at::full({}, 0.7));
  const auto [spikes, last_v] = spikeforge::lif(x, v, {.tau = tau, .v_threshold = v_threshold});
  (spikes.sum() + last_v.sum()).backward();
  for (const Tensor& t : {x, v, tau, v_threshold}) {
    REQUIRE(t.grad().sizes() == t.sizes());
    REQUIRE(t.grad().abs().sum().item<double>() > 0);
  }
}

TEST_CASE("any number of threads gives the same bits, parameter gradients included") {
  const int threads = at::get_num_threads();
  std::vector<Tensor> seen;
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    const Tensor x = leaf(wave({6, 20011})), w = leaf(at::zeros({}));
    std::get<0>(spikeforge::plif(x, w)).sum().backward();
    seen.push_back(x.grad());
    seen.push_back(w.grad());
  }
  at::set_num_threads(threads);
  for (std::size_t i = 2; i < seen.size(); ++i) REQUIRE(at::equal(seen[i], seen[i % 2]));
}

TEST_CASE("a state of the wrong shape is refused, with the operator's and the argument's name") {
  REQUIRE_THROWS_WITH(spikeforge::lif(wave({3, 4}), wave({5})), spikeforge::test::has_text("lif: v "));
}
