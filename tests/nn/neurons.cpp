// Neurons as modules: their results, and that all ways to run them agree.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/nn/modules.h"

namespace spikeforge::test {
namespace {

struct Results {
  Tensor y;
  nn::NamedTensors states;
  Tensors gradients;
};

// Runs a copy, and differentiates a loss that depends on the outputs and on the last states.
template <class Run> Results run_copy(const Stateful& module, const Tensor& x, const Run& run) {
  const auto copy = clone_of(module);
  const Tensor leaf = x.detach().clone().requires_grad_(true);
  Results results;
  results.y = run(*copy, leaf);
  results.states = copy->state();
  Tensor loss = (results.y * at::arange(1, x.size(0) + 1).view({-1, 1, 1})).sum();
  for (const auto& state : results.states) loss = loss + state.value().square().sum();
  Tensors wanted = {leaf};
  for (const Tensor& parameter : copy->parameters()) wanted.push_back(parameter);
  results.gradients = torch::autograd::grad({loss}, wanted, {}, {}, false, /*allow_unused=*/true);
  return results;
}

}  // namespace

TEST_CASE("steps, one forward and chunks of every neuron give the same bits and gradients") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  at::manual_seed(seed);
  for (const Made& neuron : all_neurons()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      INFO(neuron.name << " of " << c10::toString(type));
      const auto module = neuron.make(false);
      module->to(type == at::kDouble ? at::kDouble : at::kFloat);
      const Tensor x = (at::rand({17, 3, width}) * 3 - .5).to(type);
      const Results once = run_copy(*module, x, [](Stateful& m, const Tensor& in) { return m.forward(in); });
      const Results steps = run_copy(*module, x, [](Stateful& m, const Tensor& in) { return by_steps(m, in); });
      const Results chunks =
          run_copy(*module, x, [&](Stateful& m, const Tensor& in) { return in_chunks(m, in, random); });
      CHECK(once.y.sum().item<double>() != 0);
      for (const Results& other : {steps, chunks}) {
        CHECK(at::equal(once.y, other.y));
        for (const auto& state : once.states) CHECK(at::equal(state.value(), other.states[state.key()]));
        REQUIRE(once.gradients.size() == other.gradients.size());
        for (std::size_t i = 0; i < once.gradients.size(); ++i)
          CHECK(once.gradients[i].allclose(other.gradients[i], type == at::kBFloat16 ? 2e-2 : 1e-4, 1e-4));
      }
    }
  }
}

TEST_CASE("a module is its operator with a memory") {
  const Tensor x = at::rand({9, 2, width}) * 3;
  const Tensor tau = at::full({width}, 2.5);
  nn::LIF lif(nn::LIFOptions().tau(nn::Learnable(tau)).v_threshold(.8).v_reset(.1).surrogate("atan", {3}));
  const auto [spikes, v] = spikeforge::lif(
      x, {}, {.tau = tau, .v_threshold = .8, .v_reset = .1, .surrogate = "atan", .surrogate_args = {3}});
  CHECK(at::equal(lif(x), spikes));
  CHECK(at::equal(lif->state("v"), v));
  const auto [more, last] = spikeforge::lif(x, v, {.tau = tau, .v_threshold = .8, .v_reset = .1});
  CHECK(at::equal(lif(x), more));
  CHECK(at::equal(lif->state("v"), last));

  nn::Izhikevich izhikevich;
  const auto [s, iv, iw] = spikeforge::izhikevich(x);
  CHECK(at::equal(izhikevich(x), s));
  CHECK(at::equal(izhikevich->state("w"), iw));
}

TEST_CASE("a learned constant stays within its bounds, and has the gradient of clamp") {
  using nn::Learnable;
  const Tensor x = 3 * at::rand({9, 2, width});
  const Tensor taus = at::tensor({.5, 1., 1.5, 2., 2.5, 9.}, at::kFloat);
  const Tensor clamped = taus.clamp(1, 3);
  nn::LIF lif(nn::LIFOptions().tau(Learnable(taus, {.min = 1, .max = 3})).v_threshold(10));
  lif(x);
  CHECK(at::equal(lif->state("v"), std::get<1>(spikeforge::lif(x, {}, {.tau = clamped, .v_threshold = 10.}))));
  CHECK(at::equal(lif->named_parameters()["tau"], taus));

  lif->reset();
  const Tensor leaf = clamped.clone().requires_grad_(true);
  const auto loss = [](const Tensor& v) { return v.square().sum(); };
  lif(x);
  const Tensor got = torch::autograd::grad({loss(lif->state("v"))}, {lif->named_parameters()["tau"]})[0];
  const Tensor wanted =
      torch::autograd::grad({loss(std::get<1>(spikeforge::lif(x, {}, {.tau = leaf, .v_threshold = 10.})))}, {leaf})[0];
  const Tensor free = taus.clone().requires_grad_(true);
  const Tensor inside = torch::autograd::grad({free.clamp(1, 3).sum()}, {free})[0];  // torch's derivative at a bound
  CHECK(wanted.ne(0).all().item<bool>());
  CHECK(inside.ne(0).any().item<bool>());
  CHECK(at::equal(got, wanted * inside));

  // No optimiser step makes the value illegal.
  nn::PLIF plif(nn::PLIFOptions().w(Learnable(0.0, {.max = 2})));
  nn::EIF eif(nn::EIFOptions().tau(Learnable(2.0, {.min = 1})).delta_t(Learnable(1.0, {.min = .1})).strict(true));
  nn::IF soft(nn::IFOptions().v_threshold(Learnable(4.0, {.min = .2})).v_reset(std::nullopt));
  nn::LI li(nn::LIOptions().tau(Learnable(2.0, {.min = 1})));
  nn::Neuron own(nn::NeuronOptions(std::string(adaptive)).param("tau", Learnable(2.0, {.min = 1})).param("beta", .3));
  for (Stateful* module : std::initializer_list<Stateful*>{plif.get(), eif.get(), soft.get(), li.get(), own.get()}) {
    INFO(module->title());
    const Tensor before = module->forward(x);
    module->reset();
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : module->parameters()) parameter.fill_(module == plif.get() ? 100 : -100);
    }
    const Tensor after = module->forward(x);
    CHECK(after.isfinite().all().item<bool>());
    CHECK_FALSE(at::equal(before, after));
    for (const Tensor& grad :
         torch::autograd::grad({after.sum() + module->state("v").sum()}, module->parameters(), {}, {}, false, true))
      if (grad.defined()) CHECK(grad.eq(0).all().item<bool>());
  }

  CHECK_THROWS_AS(nn::LIF(nn::LIFOptions().tau(Learnable(2.0, {.min = 3, .max = 1}))), c10::ValueError);
  CHECK_THROWS_AS(nn::LIF(nn::LIFOptions().tau(Learnable(2.0, {.min = NAN}))), c10::ValueError);
  std::ostringstream printed;
  printed << nn::LIF(nn::LIFOptions().tau(Learnable(2.0, {.min = 1})));
  CHECK(printed.str().find("tau=2 learned in [1, inf]") != std::string::npos);
}

TEST_CASE("a neuron at its threshold fires, a strict one does not") {
  const Tensor at_threshold = at::full({1, 4}, 1.0), above = at::full({1, 4}, std::nextafter(1.f, 2.f));
  for (const bool strict : {false, true}) {
    nn::IF neuron(nn::IFOptions().strict(strict));
    CHECK(neuron(at_threshold).sum().item<double>() == (strict ? 0 : 4));
    CHECK(neuron->state("v").sum().item<double>() == (strict ? 4 : 0));
    neuron->reset();
    CHECK(neuron(above).sum().item<double>() == 4);
    nn::CubaLIF cuba(nn::CubaLIFOptions().tau_membrane(1).strict(strict));
    CHECK(cuba(at_threshold).sum().item<double>() == (strict ? 0 : 4));
  }
}

// No value is exactly at its threshold, so the strict cells give the same results.
TEST_CASE("strict neurons equal the others") {
  at::manual_seed(11);
  const Tensor x = at::rand({20, 3, width}) * 3;
  const auto same = [&](auto strict, auto usual) {
    const Tensor a = strict->forward(x), b = usual->forward(x);
    CHECK(at::equal(a, b));
    for (const auto& state : usual->state()) CHECK(strict->state(state.key()).allclose(state.value(), 1e-5, 1e-6));
  };
  using namespace nn;
  for (const std::optional<Constant>& v_reset : {std::optional<Constant>(.15), std::optional<Constant>()}) {
    same(IF(IFOptions().v_reset(v_reset).strict(true)), IF(IFOptions().v_reset(v_reset)));
    for (const bool decay_input : {false, true}) {
      const LIFOptions lif = LIFOptions().tau(3).v_reset(v_reset).decay_input(decay_input);
      same(LIF(LIFOptions(lif).strict(true)), LIF(lif));
      const PLIFOptions plif = PLIFOptions().init_tau(3).v_reset(v_reset).decay_input(decay_input);
      same(PLIF(PLIFOptions(plif).strict(true)), PLIF(plif));
    }
  }
  for (const double v_reset : {.15, -.2}) {
    const QIFOptions qif = QIFOptions().v_rest(.1).a0(.9).v_reset(v_reset);
    same(QIF(QIFOptions(qif).strict(true)), QIF(qif));
    const EIFOptions eif = EIFOptions().delta_t(.7).v_rest(.1).v_reset(v_reset);
    same(EIF(EIFOptions(eif).strict(true)), EIF(eif));
    const nn::IzhikevichOptions izhikevich = nn::IzhikevichOptions().a(.3).b(.2).tau_w(4).w_rest(.1).v_reset(v_reset);
    same(Izhikevich(nn::IzhikevichOptions(izhikevich).strict(true)), Izhikevich(izhikevich));
  }
}

TEST_CASE("CubaLIF and LI are their equations") {
  const Tensor x = at::rand({12, width}, at::kDouble) * 2;
  nn::CubaLIF cuba(nn::CubaLIFOptions().tau_synapse(4).tau_membrane(2.5).v_threshold(1.5).v_reset(.2));
  nn::LI li(nn::LIOptions().tau(3).v_rest(.5));
  nn::LI sum(nn::LIOptions().tau(3).v_rest(.5).decay_input(false));
  Tensor i = at::zeros({width}, at::kDouble), v = i + .2, m = at::zeros({width}, at::kDouble), n = m;
  const Tensor spikes = cuba(x), read = li(x), read_sum = sum(x);
  for (int t = 0; t < 12; ++t) {
    i = i - i / 4 + x[t];
    v = v + (i - (v - .2)) / 2.5;
    const Tensor s = v >= 1.5;
    CHECK(at::equal(spikes[t], s.to(at::kDouble)));
    v = v.masked_fill(s, .2);
    m = m + (x[t] - (m - .5)) / 3;
    n = n - (n - .5) / 3 + x[t];
    CHECK(read[t].allclose(m));
    CHECK(read_sum[t].allclose(n));
  }
  CHECK(spikes.sum().item<double>() > 0);
  CHECK(cuba->state("v").allclose(v));
  CHECK(cuba->state("i").allclose(i));
}

TEST_CASE("states after every step are there when they are asked for") {
  const Tensor x = at::rand({7, 2, width}) * 3;
  for (const Made& neuron : all_neurons()) {
    INFO(neuron.name);
    const auto stepped = neuron.make(false), stored = clone_of(*stepped);
    stored->store_states(true);
    stored->forward(x.narrow(0, 0, 3));
    stored->forward(x.narrow(0, 3, 4));
    for (int t = 0; t < 7; ++t) {
      stepped->step(x[t]);
      if (t < 3) continue;
      for (const auto& state : stepped->state())
        CHECK(at::equal(stored->state_sequence(state.key())[t - 3], state.value()));
    }
    for (const auto& state : stepped->state()) CHECK(at::equal(stored->state(state.key()), state.value()));
  }
}

TEST_CASE("encoders") {
  const Tensor image = at::rand({5, 4});
  const unsigned seed = 7;
  const auto make = [&] { return nn::Poisson(at::detail::createCPUGenerator(seed)); };
  nn::Poisson once = make(), stepped = make(), chunked = make();
  std::mt19937 random(seed);
  const Tensor spikes = once->encode(image, 400), x = image.expand({400, 5, 4});
  CHECK(at::equal(spikes, by_steps(*stepped, x)));
  CHECK(at::equal(spikes, in_chunks(*chunked, x, random)));
  CHECK((spikes.mean(0) - image).abs().max().item<double>() < .12);

  const auto copy = clone_of(*once);
  CHECK(at::equal(copy->forward(x), once(x)));
  CHECK(!at::equal(copy->forward(x), spikes));

  nn::Latency latency(5), latency_stepped(5);
  const Tensor values = at::tensor({1., .74, .5, .26, 0.});
  const Tensor early = latency->encode(values, 7);
  CHECK(at::equal(early.narrow(0, 0, 5), at::eye(5)));
  CHECK(early.sum().item<double>() == 5);
  CHECK(at::equal(by_steps(*latency_stepped, values.expand({7, 5})), early));
  latency->reset();
  CHECK(at::equal(latency->encode(values, 5), at::eye(5)));

  // float16 and bfloat16 have too few values for random numbers and steps.
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const Tensor halves = at::arange(257).div(256).to(type), when = (2500 * (1 - halves.to(at::kDouble))).round();
    CHECK(at::equal(nn::Latency(2501)->encode(halves, 2501).argmax(0), when.to(at::kLong)));
    const Tensor rare = at::full({4000}, 1e-3, at::dtype(type));
    const double drawn = make()->encode(rare, 500).sum(at::kDouble).item<double>(),
                 expected = rare.sum(at::kDouble).item<double>() * 500;
    CHECK(std::abs(drawn - expected) < 6 * std::sqrt(expected));
  }

  CHECK(at::equal(nn::Repeat()->encode(values, 3), values.expand({3, 5})));
}

}  // namespace spikeforge::test
