// Compares the fixed-point modules with their operators. tests/python/loihi/test_loihi.py tests the operators.
#include "csrc/nn/containers.h"
#include "csrc/nn/monitor.h"
#include "csrc/nn/simulation.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <torch/cuda.h>
#include <torch/serialize.h>

#include <sstream>

#include "tests/nn/loihi_modules.h"

namespace spikeforge::test {
namespace {

constexpr std::uint64_t loihi_seed = 20261;

bool are_states(const Stateful& module, const Tensors& results) {
  const nn::Names names = module.state_names();
  if (names.size() + 1 != results.size()) return false;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!at::equal(module.state(names[i]), results[i + 1])) return false;
  return true;
}

// The weights and the options of a layer.
struct LoihiLayer {
  Tensor weight, bias;
  LoihiConnectionOptions wiring;
  LoihiOptions neuron;
};

LoihiLayer random_layer(std::mt19937& random) {
  LoihiLayer layer{.weight = loihi_prepare_weights(random_ints(-300, 300, {width, width})),
                   .bias = random_ints(-200, 200, {width}),
                   .wiring = {.delay = static_cast<int>(random() % 3), .weight_exp = static_cast<int>(random() % 4)},
                   .neuron = {.du = static_cast<int>(random() % 4096), .dv = static_cast<int>(random() % 300)}};
  layer.neuron.bias_mant = layer.bias;
  layer.neuron.vth = static_cast<int>(random() % 500);
  return layer;
}

nn::LoihiDense dense_of(const LoihiLayer& layer) {
  return nn::LoihiDense(nn::LoihiDenseOptions(layer.weight)
                            .delay(layer.wiring.delay)
                            .weight_exp(layer.wiring.weight_exp)
                            .persistent_state(true));
}

nn::LoihiLIF neurons_of(const LoihiLayer& layer) {
  const LoihiOptions& call = layer.neuron;
  return nn::LoihiLIF(
      nn::LoihiLIFOptions().du(call.du).dv(call.dv).bias_mant(layer.bias).vth(call.vth).persistent_state(true));
}

nn::Composite chain_of(const std::vector<LoihiLayer>& layers) {
  nn::Composite net;
  std::string last = "in";
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const std::string dense = "dense" + std::to_string(k), lif = "lif" + std::to_string(k);
    net->add(dense, dense_of(layers[k]));
    net->add(lif, neurons_of(layers[k]));
    net->connect(last, dense + ".in");
    net->connect(dense + ".out", lif + ".in");
    last = lif + ".out";
  }
  net->connect(last, "out");
  return net;
}

// Tests that run on any device.
void check_against_operators(at::Device device) {
  INFO("seed " << loihi_seed);
  at::manual_seed(loihi_seed);
  std::mt19937 random(loihi_seed);
  for (const MadeLoihi& made : all_loihi_modules()) {
    INFO(made.name);
    const Tensor x = random_ints(-made.most, made.most, {23, 3, width});
    const Tensors expected = made.op(x);
    REQUIRE(!at::equal(expected[0], at::zeros_like(expected[0])));
    const auto module = made.make(false);
    module->to(device);
    const auto is_expected = [&](const Tensor& y) {
      return y.scalar_type() == at::kInt && y.device().type() == device.type() && at::equal(y.cpu(), expected[0]);
    };
    const Tensor given = x.to(device);
    REQUIRE(is_expected(module->forward(given)));
    module->to(at::kCPU);
    REQUIRE(are_states(*module, expected));
    module->to(device);
    for (const auto& way : {std::function<Tensor()>([&] { return by_steps(*module, given); }),
                            std::function<Tensor()>([&] { return in_chunks(*module, given, random); })}) {
      module->reset();
      REQUIRE(is_expected(way()));
      module->to(at::kCPU);
      REQUIRE(are_states(*module, expected));
      module->to(device);
    }
  }
}

}  // namespace

TEST_CASE("the fixed-point modules are their operators, at once, in steps and in pieces") {
  check_against_operators(at::kCPU);
}

TEST_CASE("the fixed-point modules are their operators on a GPU too") {
  if (!torch::cuda::is_available()) SPIKEFORGE_SKIP("no GPU");
  check_against_operators(at::kCUDA);
}

TEST_CASE("a network of LoihiDense and LoihiLIF is the operators one after the other") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    at::manual_seed(seed);
    const std::vector<LoihiLayer> layers = {random_layer(random), random_layer(random), random_layer(random)};
    const Tensor x = random_ints(0, 1, {19, 2, width});
    Tensor expected = x;
    std::map<std::string, Tensor> recorded;
    for (std::size_t k = 0; k < layers.size(); ++k) {
      const LoihiLayer& layer = layers[k];
      LoihiOptions storing = layer.neuron;
      storing.store_states = true;
      const LoihiResults results = loihi_lif(loihi_dense(expected, layer.weight, {}, layer.wiring).y, {}, storing);
      expected = results.spikes;
      recorded["lif" + std::to_string(k) + ".u"] = results.u;
      recorded["lif" + std::to_string(k) + ".v"] = results.v;
    }
    nn::Composite net = chain_of(layers);
    REQUIRE(at::equal(net->forward(x), expected));
    net->reset();
    REQUIRE(at::equal(by_steps(*net, x), expected));
    net->reset();
    REQUIRE(at::equal(in_chunks(*net, x, random), expected));

    net->reset();
    nn::Names names;
    for (const auto& [name, sequence] : recorded) names.push_back(name);
    const nn::Monitor monitor(net, names);
    nn::Simulation simulation(net);
    simulation.run(x.narrow(0, 0, 8));
    simulation.run(x.narrow(0, 8, 11));
    for (const auto& [name, sequence] : recorded) REQUIRE(at::equal(monitor[name], sequence));
  }
}

TEST_CASE("fixed-point neurons in a loop whose delay is the network's are the operators step by step") {
  std::mt19937 random(loihi_seed);
  at::manual_seed(loihi_seed);
  const LoihiLayer in = random_layer(random);
  LoihiLayer back = random_layer(random);
  back.wiring.delay = 0;
  nn::Composite net;
  net->add("in", dense_of(in));
  net->add("lif", neurons_of(in));
  net->add("back", dense_of(back));
  net->connect("x", "in.in");
  net->connect("in.out", "lif.in");
  net->connect("lif.out", "back.in");
  net->connect("back.out", "lif.in", {.delay = 1});
  net->connect("lif.out", "spikes");

  const Tensor x = random_ints(0, 1, {30, 2, width});
  const Tensor arriving = loihi_dense(x, in.weight, {}, in.wiring).y;
  Tensors expected;
  LoihiState state;
  Tensor returning = at::zeros({1, 2, width}, at::kInt);
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    const LoihiResults step = loihi_lif(arriving.narrow(0, t, 1) + returning, state, in.neuron);
    state = {step.u, step.v, {}};
    returning = loihi_dense(step.spikes, back.weight, {}, back.wiring).y;
    expected.push_back(step.spikes);
  }
  CHECK(at::equal(net->forward(x), at::cat(expected)));
}

TEST_CASE("fixed-point states are recorded in every step, and set") {
  at::manual_seed(loihi_seed);
  for (const MadeLoihi& made : all_loihi_modules()) {
    INFO(made.name);
    nn::Composite net;
    net->add("part", std::static_pointer_cast<Stateful>(made.make(false)));
    net->connect("in", "part.in");
    net->connect("part.out", "out");
    const Tensor x = random_ints(-made.most, made.most, {7, 3, width});
    nn::Names names = {"part.out"};
    for (const auto& state : net->parts()[0].second.stateful()->state_names()) names.push_back("part." + state);
    {
      const nn::Monitor monitor(net, names);
      nn::Simulation(net).run(x);
      for (std::int64_t t = 1; t <= 7; ++t) {
        const Tensors expected = made.op(x.narrow(0, 0, t));
        REQUIRE(at::equal(monitor[names[0]][t - 1], expected[0][t - 1]));
        for (std::size_t i = 1; i < names.size(); ++i) REQUIRE(at::equal(monitor[names[i]][t - 1], expected[i]));
      }
    }
    // Sets the states to those after three steps, and continues from there.
    const Tensors third = made.op(x.narrow(0, 0, 3));
    for (std::size_t i = 1; i < names.size(); ++i) net->set(names[i], third[i]);
    REQUIRE(at::equal(net->forward(x.narrow(0, 3, 4)), made.op(x)[0].narrow(0, 3, 4)));
  }
}

TEST_CASE("fixed-point modules are saved, loaded and copied with their states, and stay integers") {
  at::manual_seed(loihi_seed);
  const auto types = [](const Stateful& module) {
    std::vector<at::ScalarType> all;
    for (const Tensor& buffer : module.buffers()) all.push_back(buffer.scalar_type());
    return all;
  };
  for (const MadeLoihi& made : all_loihi_modules()) {
    INFO(made.name);
    const Tensor x = random_ints(-made.most, made.most, {11, 3, width}), first = x.narrow(0, 0, 6);
    const auto saved = made.make(true), loaded = made.make(true);
    saved->forward(first);
    saved->to(at::kDouble);
    for (const at::ScalarType type : types(*saved)) CHECK(!at::isFloatingType(type));
    std::stringstream file;
    torch::save(saved, file);
    torch::load(loaded, file);
    const auto copy = clone_of(*saved);
    CHECK(types(*loaded) == types(*saved));
    const Tensor rest = made.op(x)[0].narrow(0, 6, 5);
    for (Stateful* module : {saved.get(), loaded.get(), copy.get()})
      CHECK(at::equal(module->forward(x.narrow(0, 6, 5)), rest));
    std::stringstream printed;
    saved->pretty_print(printed);
    CHECK_THAT(printed.str(), has_text(made.name.substr(0, made.name.find_first_of(" ,")) + "("));
  }
}

TEST_CASE("a checkpoint has other weights than the module that reads it") {
  std::mt19937 random(loihi_seed);
  at::manual_seed(loihi_seed);
  const std::vector<LoihiLayer> layers = {random_layer(random), random_layer(random)};
  std::vector<LoihiLayer> others = layers;
  for (LoihiLayer& layer : others) {
    layer.weight = at::zeros_like(layer.weight);
    layer.bias = at::zeros_like(layer.bias);
  }
  nn::Composite saved = chain_of(layers), loaded = chain_of(others);
  const Tensor x = random_ints(0, 1, {40, 2, width});
  const Tensor expected = chain_of(layers)->forward(x);
  saved->forward(x.narrow(0, 0, 20));
  std::stringstream file;
  torch::save(saved, file);
  torch::load(loaded, file);
  CHECK(at::equal(loaded->forward(x.narrow(0, 20, 20)), expected.narrow(0, 20, 20)));
}

TEST_CASE("fixed-point modules refuse wrong arguments") {
  using namespace nn;
  const Tensor weight = at::full({2, 3}, 7, at::kInt);
  CHECK(message_of([] { LoihiLIF(LoihiLIFOptions().du(5000)); }) ==
        "LoihiLIF: loihi_lif: du must be in [-1, 4095], but is 5000");
  CHECK(message_of([] { LoihiLIF(LoihiLIFOptions().dv(at::full({3}, -1, at::kInt))); }) ==
        "LoihiLIF: loihi_lif: dv must be in [0, 4096], but has values from -1 to -1");
  CHECK_THAT(message_of([] { LoihiLIF(LoihiLIFOptions().bias_mant(at::full({3}, 1.0))); }),
             has_text("LoihiLIF: loihi_lif: bias_mant must be Int for a Int x, but is Float"));
  CHECK(message_of([] { LoihiLIF(LoihiLIFOptions().vth_lo(3)); }) ==
        "LoihiLIF: vth_lo is not an argument of loihi_lif, which has du, dv, bias_mant, bias_exp, vth");
  CHECK(message_of([] { LoihiLIF(LoihiLIFOptions().form(LoihiForm::reset).refractory_period(3)); }) ==
        "LoihiLIF: refractory_period is not an argument of loihi_lif_reset, which has du, dv, bias_mant, bias_exp, "
        "vth, reset_interval, reset_offset");
  CHECK_THAT(message_of([] { LoihiLIF(LoihiLIFOptions().ternary(true).vth_hi(-20)); }),
             has_text("LoihiLIF: loihi_ternary_lif: vth_lo must not be above vth_hi"));
  CHECK_THAT(
      message_of([] { LoihiLIF(LoihiLIFOptions().du(at::full({3}, 1, at::kInt)).dv(at::full({2}, 1, at::kInt))); }),
      has_text("LoihiLIF: dv has shape [2], which does not broadcast against [3]"));
  CHECK(message_of([] { LoihiLIF(LoihiLIFOptions().dv(Tensor())); }) == "LoihiLIF: dv is an undefined tensor");
  CHECK(message_of([&] { LoihiDense(LoihiDenseOptions(weight).delay(65)); }) ==
        "LoihiDense: loihi_dense: delay must be in [0, 64], but is 65");
  CHECK(message_of([&] { LoihiDense(weight * 100); }) ==
        "LoihiDense: loihi_dense: weight must be in [-256, 255], but has values from 700 to 700");
  CHECK_THAT(message_of([&] { LoihiDense(LoihiDenseOptions(weight[0])); }),
             has_text("LoihiDense: loihi_dense: weight must have shape [out, in]"));
  CHECK_THAT(message_of([&] { LoihiDelayDense(LoihiDelayDenseOptions(weight, weight, 6)); }),
             has_text("LoihiDelayDense: loihi_delay_dense: delays must be in [0, 6]"));
  CHECK_THAT(message_of([&] { LoihiSparse(LoihiSparseOptions(weight[0], weight[0], weight[0])); }),
             has_text("LoihiSparse: loihi_sparse: crow_indices must be Long, but is Int"));

  Sequential net;
  net->push_back("dense", LoihiDense(weight));
  net->push_back("lif", LoihiLIF());
  net->forward(at::full({2, 4, 3}, 1, at::kInt));
  CHECK(message_of([&] {
          net->forward(at::full({2, 5, 3}, 1, at::kInt));
        }) ==
        "LoihiDense 'dense': the state buffer has shape [1, 4, 2], but this input's is [1, 5, 2]; call reset() to "
        "restart");
  CHECK_THAT(message_of([&] {
               net->forward(at::full({2, 4, 3}, 1.0));
             }),
             has_text("LoihiDense 'dense': x must be int32, as the weights are, but is Float"));
  CHECK_THAT(message_of([&] {
               net->forward(at::full({2, 4, 2}, 1, at::kInt));
             }),
             has_text("LoihiDense 'dense': loihi_dense: weight must have shape [out, in] with in = 2"));
  CHECK_THAT(message_of([&] { net->forward(at::full({2}, 1, at::kInt)); }),
             has_text("LoihiDense 'dense': takes one input, [T, *batch, in]"));
  CHECK_THAT(message_of([&] {
               net->set_state("dense.buffer", at::zeros({2, 4, 2}, at::kInt));
             }),
             has_text("LoihiDense 'dense': the state buffer must be [1, *batch, 2], but is [2, 4, 2]"));
  CHECK_THAT(
      message_of([&] {
        net->set_state("lif.u", at::zeros({4, 2}, at::kHalf));
      }),
      has_text("LoihiLIF 'lif': the state u must be int32, or of the floating-point type of the input, but is Half"));
  net->set_state("lif.v", at::full({4, 2}, 1 << 24, at::kInt));
  CHECK_THAT(message_of([&] {
               net->forward(at::full({2, 4, 3}, 1, at::kInt));
             }),
             has_text("LoihiLIF 'lif': loihi_lif: v must be in"));
  LoihiLIF lif;
  lif(at::full({1, 2}, 1, at::kInt));
  CHECK_THAT(message_of([&] {
               lif(at::full({1, 2}, 1.0, at::kHalf));
             }),
             has_text("LoihiLIF: x must be int32, or float32 or float64 to be differentiated, but is Half"));
  CHECK_THAT(message_of([&] {
               lif(at::full({1, 3}, 1, at::kInt));
             }),
             has_text("LoihiLIF: the state u has shape [2], but a step of the input has [3]; call reset()"));
}

TEST_CASE("a fixed-point neuron has the same spikes of floats, and gradients") {
  using namespace nn;
  at::manual_seed(loihi_seed);
  const Tensor x = random_ints(-40, 90, {12, 4, 3}), bias = random_ints(-50, 50, {3});
  const LoihiLIFOptions options = LoihiLIFOptions().du(900).dv(300).bias_mant(bias).bias_exp(2).vth(50);
  const Tensor reals = x.to(at::kDouble).requires_grad_();
  const Tensor spikes = LoihiLIF(LoihiLIFOptions(options))(reals);
  CHECK(at::equal(spikes.to(at::kInt), LoihiLIF(LoihiLIFOptions(options))(x)));
  spikes.sum().backward();
  const Tensor by_sigmoid = reals.grad().clone();
  CHECK(by_sigmoid.abs().sum().item<double>() > 0);
  reals.mutable_grad() = Tensor();
  LoihiLIF(LoihiLIFOptions(options).surrogate("atan", {3.0}).detach_reset(true))(reals).sum().backward();
  CHECK(!at::allclose(reals.grad(), by_sigmoid));
}

}  // namespace spikeforge::test
