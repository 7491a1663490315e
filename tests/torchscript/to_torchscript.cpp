// Modules converted to TorchScript give the same bits as the modules, also after the script is copied, saved or moved.
#include "csrc/nn/batch_norm_neuron.h"
#include "csrc/nn/containers.h"
#include "csrc/nn/delay.h"
#include "csrc/nn/time_distributed.h"
#include "csrc/torchscript/torchscript.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/nn/loihi_modules.h"
#include "tests/nn/random_network.h"

namespace spikeforge::test {
namespace {

namespace jit = torch::jit;
using nn::Learnable;
using torch::nn::Conv2dOptions;

jit::Module loaded(const jit::Module& script) {
  std::stringstream file;
  script.save(file);
  return jit::load(file);
}

struct Form {
  const char* name;
  std::function<jit::Module(const jit::Module&)> of;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"as written", [](const jit::Module& m) { return m; }},
      {"saved and loaded", loaded},
      {"copied", [](const jit::Module& m) { return m.deepcopy(); }},
      {"frozen",
       [](const jit::Module& m) {
         return jit::freeze(m, std::vector<std::string>{"reset"}, /*optimize_numerics=*/false);
       }},
      {"frozen, saved and loaded",
       [](const jit::Module& m) {
         return loaded(jit::freeze(m, std::vector<std::string>{"reset"}, /*optimize_numerics=*/false));
       }},
      {"optimized for inference",
       [](const jit::Module& m) {
         jit::Module frozen = jit::freeze(m, std::vector<std::string>{"reset"});
         return jit::optimize_for_inference(frozen, {"reset"});
       }},
  };
  return all;
}

Tensor call(jit::Module& script, const Tensor& x) { return script.forward({x}).toTensor(); }

bool same(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.eq(b) | (a.ne(a) & b.ne(b))).all().item<bool>();
}

// Runs two sequences one after the other, again after reset(), and step by step: the interpreter optimises a function
// after it has recorded some calls.
void require_same(Stateful& module, const jit::Module& written, const Tensor& x, bool empty_pieces = true) {
  const at::NoGradGuard no_grad;
  module.reset();
  const Tensor whole = module.forward(x), more = module.forward(x);
  for (const Form& form : forms()) {
    INFO("the script " << form.name);
    jit::Module script = form.of(written);
    for (int round = 0; round < 3; ++round) {
      INFO("round " << round + 1);
      REQUIRE(same(call(script, x), whole));
      REQUIRE(same(call(script, x), more));
      script.get_method("reset")({});
    }
    Tensors pieces;
    const std::int64_t cut = x.size(0) / 3;
    if (empty_pieces) pieces.push_back(call(script, x.narrow(0, 0, 0)));
    for (std::int64_t t = 0; t < cut; ++t) pieces.push_back(call(script, x.narrow(0, t, 1)));
    pieces.push_back(call(script, x.slice(0, cut)));
    REQUIRE(same(at::cat(pieces), whole));
    script.get_method("reset")({});
  }
}

jit::Module eval_script(torch::nn::Module& module, const Tensor& example) {
  module.eval();
  return to_torchscript(module, example);
}

}  // namespace

TEST_CASE("every neuron written as TorchScript gives its own bits, and carries its state") {
  at::manual_seed(1);
  for (const Made& made : all_neurons())
    for (const bool persistent : {false, true}) {
      INFO(made.name << (persistent ? ", persistent" : ""));
      const auto neuron = made.make(persistent);
      const Tensor x = 2 * at::rand({17, 4, width});
      neuron->forward(x);  // a script starts without states, even if the module has some
      const jit::Module script = eval_script(*neuron, x);
      require_same(*neuron, script, x);
      for (const std::string& state : neuron->state_names()) {
        REQUIRE(script.hasattr(persistent ? state : state + "_state"));
        bool is_buffer = false;
        for (const auto& buffer : script.named_buffers()) is_buffer = is_buffer || buffer.name == state;
        REQUIRE(is_buffer == persistent);
      }
      for (const auto& item : neuron->named_parameters()) REQUIRE(script.attr(item.key()).toTensor().requires_grad());
    }
}

TEST_CASE("a script that has run is saved and copied without its states, unless they are persistent") {
  at::manual_seed(14);
  const at::NoGradGuard no_grad;
  const auto check = [](Stateful& module, const Tensor& x, bool persistent, std::size_t buffers_of_states) {
    jit::Module script = eval_script(module, x);
    module.reset();
    const Tensor first = module.forward(x), second = module.forward(x);
    const auto shapes = [](const jit::Module& m) {
      std::vector<std::pair<std::string, std::vector<std::int64_t>>> all;
      for (const auto& item : m.named_buffers()) all.emplace_back(item.name, item.value.sizes().vec());
      return all;
    };
    const auto fresh = shapes(script);
    REQUIRE(same(call(script, x), first));
    REQUIRE((shapes(script) == fresh) == (buffers_of_states == 0));  // a new copy accepts its state_dict
    for (const auto& of : {loaded, +[](const jit::Module& m) { return m.deepcopy(); }}) {
      jit::Module other = of(script);
      REQUIRE(same(call(other, x), persistent ? second : first));
      if (!persistent) {
        jit::Module of_another_batch = of(script);
        call(of_another_batch, x.narrow(1, 0, 1));
      }
    }
    REQUIRE(same(call(script, x), second));  // the script's own states are unaffected by the copies
  };
  for (const Made& made : all_neurons())
    for (const bool persistent : {false, true}) {
      INFO(made.name << (persistent ? ", persistent" : ""));
      const auto neuron = made.make(persistent);
      check(*neuron, 2 * at::rand({5, 4, width}), persistent, persistent ? neuron->state_names().size() : 0);
    }
  nn::Sequential net(nn::Recurrent(nn::LIF(), torch::nn::Linear(width, width)), nn::Delay(at::tensor(3)),
                     nn::Sequential(nn::LI()));
  check(*net, 2 * at::rand({5, 4, width}), false, 0);
}

TEST_CASE("written neurons take every floating-point type") {
  at::manual_seed(2);
  for (const Made& made : all_neurons())
    for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16}) {
      INFO(made.name << ", " << type);
      const auto neuron = made.make(false);
      // Constants are float32, which half types support.
      if (type == at::kDouble) neuron->to(type);
      const Tensor x = (2 * at::rand({9, 2, width})).to(type);
      require_same(*neuron, eval_script(*neuron, x), x);
    }
}

TEST_CASE("fixed-point modules written as TorchScript give their own bits") {
  at::manual_seed(2);
  for (const MadeLoihi& made : all_loihi_modules())
    for (const bool persistent : {false, true}) {
      INFO(made.name << (persistent ? ", persistent" : ""));
      const auto module = made.make(persistent);
      const Tensor x = random_ints(-made.most, made.most, {11, 3, width});
      require_same(*module, eval_script(*module, x), x);
    }
  nn::Sequential net(nn::LoihiDense(random_ints(-256, 255, {4, width})), nn::LoihiLIF());
  const Tensor x = random_ints(0, 1, {11, 3, width});
  require_same(*net, eval_script(*net, x), x);
}

TEST_CASE("constants of every size keep their digits") {
  at::manual_seed(3);
  for (const double number : {0.1, 1.0 / 3, 1e-30, 3e30, 2.0, 1e15}) {
    INFO(number);
    nn::LIF plain(nn::LIFOptions().tau(1 + number).v_threshold(number).v_reset(-number));
    nn::LIF mixed(nn::LIFOptions().tau(Learnable(at::full({}, 2.0, at::kDouble))).v_threshold(number));
    for (Stateful* neuron : {static_cast<Stateful*>(plain.get()), static_cast<Stateful*>(mixed.get())}) {
      const Tensor x = number * 2 * at::rand({9, 3}, at::kDouble);
      require_same(*neuron, eval_script(*neuron, x), x);
    }
  }
}

TEST_CASE("bounds of learned constants are written, and have the gradient of clamp") {
  const Tensor taus = at::tensor({.5, 1., 1.5, 2., 2.5, 9.}, at::kFloat);
  const Learnable tau(taus, {.min = 1, .max = 3});
  nn::LIF lif(nn::LIFOptions().tau(tau));
  nn::PLIF plif(nn::PLIFOptions().w(Learnable(5.0, {.max = 2})));
  nn::LIF strict(nn::LIFOptions().tau(tau).v_reset(Learnable(-3.0, {.min = -.1})).strict(true));
  nn::Neuron own(nn::NeuronOptions(std::string(adaptive)).param("tau", tau).param("beta", .3));
  for (Stateful* neuron : std::initializer_list<Stateful*>{lif.get(), plif.get(), strict.get(), own.get()}) {
    INFO(neuron->title());
    const Tensor x = 2 * at::rand({9, 3, width});
    require_same(*neuron, eval_script(*neuron, x), x);
  }
  jit::Module script = eval_script(*lif, at::rand({9, 3, width}));
  const Tensor x = 2 * at::rand({9, 3, width});
  lif->reset();
  lif(x);
  const Tensor wanted = torch::autograd::grad({lif->state("v").sum()}, {lif->named_parameters()["tau"]})[0];
  script.forward({x});
  const Tensor parameter = script.attr("tau").toTensor();
  CHECK(at::equal(
      torch::autograd::grad({script.attr("v_state").toModule().attr("value").toTensor().sum()}, {parameter})[0],
      wanted));
}

namespace {

void check_random_networks(unsigned begin, unsigned end) {
  for (unsigned seed = begin; seed < end; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    at::manual_seed(seed);
    const bool exact_layers = seed % 2 == 0;
    const RandomNetwork description = random_network(random, exact_layers);
    nn::Composite net = description.build();
    Tensor x = 2 * at::rand({8, 3, width});
    if (!exact_layers) x = (x * 4).round() / 4;  // few bits, so that sums are exact in any order
    const jit::Module script = eval_script(*net, x);
    require_same(*net, script, x, /*empty_pieces=*/false);
  }
}

}  // namespace

TEST_CASE("random networks of connections, delays and loops give their own bits") { check_random_networks(0, 4); }
TEST_CASE("more random networks give their own bits", "[long]") { check_random_networks(4, 14); }

TEST_CASE("delays give their own bits") {
  at::manual_seed(12);
  const Tensor x = at::rand({8, 3, 4});
  for (const Tensor& steps : {at::tensor({0, 3, 1, 9}), at::tensor({2}), at::tensor(0), at::tensor(5)}) {
    nn::Delay delay(steps);
    const jit::Module script = eval_script(*delay, x);
    require_same(*delay, script, x);
  }
}

TEST_CASE("connections that start from rest give their own bits") {
  at::manual_seed(13);
  const Tensor x = at::rand({8, 3, 4});
  nn::Composite inner;
  inner->add("dense", torch::nn::Linear(4, 4));
  inner->add("late", nn::Delay(at::tensor({0, 1, 0, 2})));
  inner->add("lif", nn::LIF());
  inner->connect("in", "dense.in");
  inner->connect("lif.out", "dense.in", {.delay = 1});
  inner->connect("dense.out", "late.in");
  inner->connect("late.out", "lif.in");
  inner->connect("late.out", "out");
  inner->connect("lif.out", "out");
  nn::Composite net;
  net->add("lif", nn::LIF());
  net->add("way back", inner);
  net->connect("in", "lif.in");
  net->connect("lif.out", "way back.in");
  net->connect("way back.out", "lif.in", {.delay = 2, .repeated = true, .from_rest = true});
  net->connect("way back.out", "lif.in", {.delay = 2, .repeated = true, .from_rest = true});
  net->connect("in", "lif.in", {.delay = 1, .from_rest = true});
  net->connect("lif.out", "out");
  const jit::Module script = eval_script(*net, x);
  require_same(*net, script, x, /*empty_pieces=*/false);
  const at::NoGradGuard no_grad;
  net->reset();
  net->forward(x.narrow(0, 0, 1));
  CHECK(net->state("way back_out_to_lif_in")[0].abs().sum().item<double>() > 0);  // it did not start at zeros
}

TEST_CASE("layers of torch give their own bits") {
  at::manual_seed(4);
  using namespace torch::nn;
  const Tensor images = at::rand({4, 3, 9, 9}), rows = at::rand({4, 3, 9});
  const auto options2d = Conv2dOptions(3, 6, 3).stride({2, 1}).padding({1, 2}).dilation(1).groups(3);
  const std::vector<std::pair<Sequential, Tensor>> all = {
      {Sequential(Linear(9, 5), ReLU(), Linear(LinearOptions(5, 2).bias(false)), Sigmoid()), rows[0]},
      {Sequential(Linear(9, 5), Tanh(), Linear(LinearOptions(5, 2).bias(false)), Identity()), rows},
      {Sequential(Conv2d(options2d), BatchNorm2d(6), MaxPool2d(2)), images},
      {Sequential(Conv2d(Conv2dOptions(3, 4, 3).padding(torch::kSame).bias(false)), AvgPool2d(2), Flatten()), images},
      {Sequential(Conv2d(Conv2dOptions(3, 4, 2).padding(torch::kValid)), AdaptiveAvgPool2d(2)), images},
      {Sequential(AvgPool2d(AvgPool2dOptions(3).stride(2).padding(1).count_include_pad(false).divisor_override(7)),
                  AdaptiveAvgPool2d(AdaptiveAvgPool2dOptions({std::nullopt, 2})), Flatten(FlattenOptions().end_dim(2))),
       images},
      {Sequential(Conv1d(Conv1dOptions(3, 6, 3).stride(2)), BatchNorm1d(6),
                  MaxPool1d(MaxPool1dOptions(2).ceil_mode(true))),
       rows},
      {Sequential(AvgPool1d(AvgPool1dOptions(3).padding(1)), AdaptiveAvgPool1d(2), Flatten(), BatchNorm1d(6)), rows},
      {Sequential(ConstantPad1d(ConstantPad1dOptions({1, 2}, 0.5)), Conv1d(Conv1dOptions(3, 2, 3))), rows},
      {Sequential(ConstantPad2d(ConstantPad2dOptions({0, 2, -1, 3}, -1))), images},
      {Sequential(Linear(9, 5), Dropout(0.25)), rows},
      {Sequential(BatchNorm1d(BatchNorm1dOptions(3).affine(false).momentum(std::nullopt)), Dropout(0.0)), rows},
      {Sequential(BatchNorm1d(BatchNorm1dOptions(3).track_running_stats(false))), rows},
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const bool training : {false, true}) {
      INFO("network " << i << (training ? ", training" : ""));
      Sequential net = all[i].first;
      const Tensor& x = all[i].second;
      net->train(training);
      jit::Module script = to_torchscript(*net, x).deepcopy();  // a copy, which does not share running statistics
      for (int k = 0; k < 3; ++k) {
        at::manual_seed(k);
        const Tensor expected = net->forward(x);
        at::manual_seed(k);
        REQUIRE(same(call(script, x), expected));
      }
      for (const auto& item : net->named_buffers()) {
        INFO(item.key());
        bool found = false;
        for (const auto& buffer : script.named_buffers())
          if (buffer.name == item.key()) found = same(buffer.value, item.value());
        REQUIRE(found);
      }
      if (training) continue;
      jit::Module frozen = jit::freeze(loaded(script), {}, /*optimize_numerics=*/false);
      REQUIRE(same(call(frozen, x), net->forward(x)));
      // BatchNorm is folded into convolutions, which rounds otherwise.
      jit::Module fast = jit::optimize_for_inference(frozen);
      for (int k = 0; k < 3; ++k) REQUIRE(call(fast, x).allclose(net->forward(x), 1e-4, 1e-5));
    }
}

namespace {

// A network for images [T, batch, 1, 8, 8] in which everything occurs.
nn::Sequential everything() {
  using namespace torch::nn;
  Sequential head(Flatten(), Linear(8 * 4 * 4, width), Dropout(0.5));
  nn::Sequential inner(nn::Recurrent(nn::PLIF(), Linear(width, width)),
                       nn::Neuron(nn::NeuronOptions(adaptive).param("tau", Learnable(2.0)).param("beta", .3)));
  return nn::Sequential(nn::TimeDistributed(Conv2d(Conv2dOptions(1, 8, 3).padding(1))),
                        nn::LIF(nn::LIFOptions().tau(Learnable(at::full({8, 1, 1}, 1.5)))),
                        nn::TimeDistributed(MaxPool2d(2)), nn::TimeDistributed(BatchNorm2d(8)),
                        nn::BatchNormNeuron(BatchNorm2d(8), nn::LIF()), head, inner, Linear(width, 3), nn::LI());
}

}  // namespace

TEST_CASE("a whole network gives its own bits and gradients") {
  at::manual_seed(5);
  nn::Sequential net = everything();
  const Tensor x = 3 * at::rand({6, 4, 1, 8, 8});
  const jit::Module script = eval_script(*net, x);
  require_same(*net, script, x, /*empty_pieces=*/false);

  jit::Module own = loaded(script);
  net->reset();
  net->forward(x).sum().backward();
  for (int k = 0; k < 4; ++k) {
    own.get_method("reset")({});
    call(own, x).sum().backward();
    int compared = 0;
    for (const auto& parameter : own.named_parameters()) {
      const Tensor mine = parameter.value.grad(), theirs = net->named_parameters()[parameter.name].grad();
      INFO(parameter.name);
      REQUIRE(mine.defined() == theirs.defined());
      if (!mine.defined()) continue;
      REQUIRE(mine.allclose(theirs, 1e-4, 1e-5 * theirs.abs().max().item<double>()));
      parameter.value.mutable_grad() = Tensor();
      ++compared;
    }
    REQUIRE(compared > 8);
  }
  // The history of autograd extends over both calls until detach_state().
  own.get_method("reset")({});
  call(own, x);
  own.get_method("detach_state")({});
  call(own, x).sum().backward();
}

TEST_CASE("Python loads what C++ wrote, with nothing but the library") {
#ifdef SPIKEFORGE_TEST_PYTHON
  at::manual_seed(6);
  nn::Sequential net = everything();
  const Tensor x = 3 * at::rand({6, 4, 1, 8, 8});
  const jit::Module script = eval_script(*net, x);
  net->reset();
  const at::NoGradGuard no_grad;
  const Tensor first = net->forward(x), second = net->forward(x);
  REQUIRE(first.ne(second).any().item<bool>());

  std::string folder = "/tmp/spikeforge_torchscript_XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  script.save(folder + "/net.pt");
  for (const auto& [name, value] : {std::pair("x", x), std::pair("first", first), std::pair("second", second)}) {
    const std::vector<char> bytes = jit::pickle_save(value);
    std::ofstream(folder + "/" + name + ".pt", std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  const std::string command =
      "'" SPIKEFORGE_TEST_PYTHON "' '" SPIKEFORGE_TEST_LOAD "' '" SPIKEFORGE_TEST_LIBRARY "' " + folder;
  const int status = std::system(command.c_str());
  for (const char* name : {"net", "x", "first", "second"}) ::unlink((folder + "/" + name + ".pt").c_str());
  ::rmdir(folder.c_str());
  REQUIRE(status == 0);
#endif
}

TEST_CASE("encoders draw and count as they do in the module") {
  at::manual_seed(7);
  const Tensor x = at::rand({7, 3, width});
  nn::Sequential poisson{nn::Poisson(), nn::LIF()};
  jit::Module script = eval_script(*poisson, x);
  for (int k = 0; k < 4; ++k) {
    at::manual_seed(k);
    const Tensor expected = poisson->forward(x);
    at::manual_seed(k);
    REQUIRE(same(call(script, x), expected));
  }
  for (const auto type : {at::kFloat, at::kHalf}) {
    const Tensor values = at::rand({3, width}).to(type).expand({7, 3, width}),
                 rare = at::full({500, 400}, .002).to(type);
    nn::Sequential latency(nn::Latency(3000), nn::Repeat()), sparse{nn::Poisson(), nn::Repeat()};
    require_same(*latency, eval_script(*latency, values), values);
    script = eval_script(*sparse, rare);
    at::manual_seed(9);
    const Tensor expected = sparse->forward(rare);
    at::manual_seed(9);
    REQUIRE(same(call(script, rare), expected));
  }
}

TEST_CASE("a neuron of several inputs and outputs is written with all of them") {
  at::manual_seed(8);
  nn::Neuron pair(nn::NeuronOptions(std::string(R"(
neuron pair(lambda, in; v, def = 0.5; if, training) {
  h = if * v + lambda - in
  return spike(h - 1, atan(2)), h + training
  v' = h
  def' = 0.5 * def + lambda
})"))
                      .param("if", Learnable(0.5))
                      .param("training", 0.25));
  const Tensors x = {at::rand({5, 3}), at::rand({5, 3})};
  jit::Module script = to_torchscript(*pair, x);
  jit::Module again = loaded(script);
  for (jit::Module* each : {&script, &again}) {
    pair->reset();
    for (int k = 0; k < 3; ++k) {
      const Tensors expected = pair->run(x, 5);
      const auto actual = each->forward({x[0], x[1]}).toTupleRef().elements().vec();
      for (std::size_t i = 0; i < 2; ++i) REQUIRE(same(actual.at(i).toTensor(), expected.at(i)));
    }
    REQUIRE(each->hasattr("if_"));  // a keyword of Python
    REQUIRE(each->hasattr("def__state"));
  }
}

TEST_CASE("names that are no names in Python are written") {
  at::manual_seed(9);
  nn::Composite net;
  for (const char* name : {"lif-1 é", "class", "forward", "x", "t", "line", "torch"}) net->add(name, nn::LIF());
  net->add("0", torch::nn::Linear(width, width));
  net->connect("in", "lif-1 é.in");
  net->connect("lif-1 é.out", "class.in", {.delay = 2});
  net->connect("class.out", "forward.in");
  net->connect("forward.out", "x.in", {.delay = 1});
  net->connect("x.out", "t.in");
  net->connect("in", "t.in");
  net->connect("t.out", "0.in");
  net->connect("0.out", "line.in");
  net->connect("line.out", "line.in", {.delay = 1});
  net->connect("line.out", "torch.in");
  net->connect("torch.out", "out");
  net->connect("in", "out", {.delay = 20});
  const Tensor x = 3 * at::rand({12, 2, width});
  require_same(*net, eval_script(*net, x), x, /*empty_pieces=*/false);
}

TEST_CASE("a module that is used twice is one module in the script") {
  at::manual_seed(10);
  const nn::LIF shared;
  const torch::nn::Linear layer(width, width);
  nn::Sequential net(layer, shared, layer, shared);
  const Tensor x = 3 * at::rand({6, 2, width});
  const jit::Module script = eval_script(*net, x);
  require_same(*net, script, x, /*empty_pieces=*/false);
}

TEST_CASE("input that does not fit the states is an error, and reset() mends it") {
  nn::Composite net;
  net->add("layer", torch::nn::Linear(width, width));
  net->connect("in", "layer.in", {.delay = 2});
  net->connect("layer.out", "layer.in", {.delay = 1});
  net->connect("layer.out", "out");
  const Tensor x = at::rand({4, 3, width});
  jit::Module script = to_torchscript(*net, x);
  call(script, x);
  for (const Tensor& other : {at::rand({4, 1, width}), at::rand({4, 3, width}, at::kDouble)})
    REQUIRE_THROWS_WITH(call(script, other), has_text("call reset() to restart"));
  script.get_method("reset")({});
  call(script, at::rand({4, 1, width}));

  nn::LIF lif;
  jit::Module neuron = to_torchscript(*lif, x);
  call(neuron, x);
  REQUIRE_THROWS_WITH(call(neuron, at::rand({4, 1, width})), has_text("v must have shape"));
}

namespace {

// Its results differ from those of its base class, which the converter supports.
class Twice : public nn::SequentialImpl {
 public:
  Twice() : SequentialImpl(nn::LIF()) {}

 protected:
  Tensors advance(at::TensorList inputs, std::int64_t steps) override {
    Tensors outputs = SequentialImpl::advance(inputs, steps);
    for (Tensor& y : outputs) y = 2 * y;
    return outputs;
  }
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<Twice>(); }
};

struct SumPoolImpl : torch::nn::Cloneable<SumPoolImpl> {
  void reset() override {}
  Tensor forward(const Tensor& x) { return x.unflatten(-1, {-1, 2}).sum(-1); }
};
TORCH_MODULE(SumPool);

struct UnknownImpl : Stateful {
 protected:
  const char* kind() const override { return "Unknown"; }
  Tensors advance(at::TensorList inputs, std::int64_t /*steps*/) override { return {inputs[0]}; }
  std::shared_ptr<Stateful> fresh() const override { return std::make_shared<UnknownImpl>(); }
};

}  // namespace

TEST_CASE("what cannot be written is named with its path") {
  const Tensor x = at::full({2, 1, width}, 4.0);  // large enough for a LIF to fire
  const auto refusal = [&](torch::nn::Module& module) { return message_of([&] { to_torchscript(module, x); }); };
  nn::Composite net;
  net->add("encoder", torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::ReLU(), torch::nn::Embedding(3, 3)));
  REQUIRE(refusal(*net) == "to_torchscript: net (Composite): a network without an input or an output");
  net->connect("in", "encoder.in");
  net->connect("encoder.out", "out");
  REQUIRE(refusal(*net) ==
          "to_torchscript: net.encoder.2 (Embedding): it has no TorchScript form; define one by script_as");

  const nn::Poisson own(at::globalContext().defaultGenerator(at::kCPU).clone());
  nn::Sequential deep(nn::LIF(), nn::Sequential(nn::LIF(), own));
  REQUIRE(refusal(*deep) == "to_torchscript: net.1.1 (Poisson): a custom Generator cannot be written");
  nn::Sequential unknown(torch::nn::ModuleHolder<UnknownImpl>(std::make_shared<UnknownImpl>()));
  REQUIRE(refusal(*unknown) ==
          "to_torchscript: net.0 (Unknown): it has no TorchScript form; override script() to define one");
  torch::nn::Conv2d reflecting(Conv2dOptions(1, 1, 3).padding(1).padding_mode(torch::kReflect));
  REQUIRE(refusal(*reflecting) == "to_torchscript: net (Conv2d): only zeros as padding_mode can be written");
  Twice twice;
  REQUIRE_THAT(refusal(twice), has_text("the script's results on the example are not the module's"));
  nn::LIF lif;
  REQUIRE_THAT(message_of([&] { to_torchscript(*lif, at::TensorList()); }), has_text("the example has no tensor"));
}

TEST_CASE("a class of one's own is written as it says") {
  script_as<SumPoolImpl>([](const SumPoolImpl&) {
    return Script{.name = "SumPool", .forward = "return torch.unflatten(x, -1, [-1, 2]).sum(-1)"};
  });
  at::manual_seed(11);
  nn::Sequential net{SumPool(), nn::LIF()};
  const Tensor x = 2 * at::rand({5, 3, width});
  require_same(*net, eval_script(*net, x), x, /*empty_pieces=*/false);
  script_as<SumPoolImpl>([](const SumPoolImpl&) { return Script{.name = "SumPool", .forward = "return x.pooled()"}; });
  REQUIRE_THAT(message_of([&] { to_torchscript(*net, x); }),
               has_text("to_torchscript: net.0 (SumPool): its source is refused by TorchScript"));
}

TEST_CASE("the source of a neuron is the call of its operator") {
  const auto source = [](const Stateful& module) { return module.script().forward; };
  REQUIRE(source(*nn::LIF(nn::LIFOptions().tau(3).surrogate("atan", {2.5}))) ==
          "v: Optional[Tensor] = self.v\n"
          "if self.v.size() == [0]:\n"
          "  v = None\n"
          "spikes, self.v = torch.ops.spikeforge.lif(x, v, tau=3.0, v_threshold=1.0, v_reset=0.0, surrogate=\"atan\", "
          "surrogate_args=[2.5])\n"
          "return spikes");
  REQUIRE_THAT(source(*nn::PLIF(nn::PLIFOptions().v_reset(std::nullopt).decay_input(false).detach_reset(true))),
               has_text("plif(x, self.w, v, v_threshold=1.0, v_reset=None, decay_input=False, detach_reset=True)"));
}

}  // namespace spikeforge::test
