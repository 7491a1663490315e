// States by name: keeping, moving, copying, saving, and errors.
#include "csrc/nn/composite.h"
#include "csrc/nn/containers.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <initializer_list>
#include <sstream>

#include "tests/nn/modules.h"

namespace spikeforge::test {
namespace {

Tensor train_step(Stateful& network, torch::optim::Optimizer& optimizer, const Tensor& x, const Tensor& target) {
  network.detach_state();
  const Tensor loss = (network.forward(x) - target).square().mean();
  optimizer.zero_grad();
  loss.backward();
  optimizer.step();
  return loss.detach();
}

nn::Sequential network_of(const Made& neuron) {
  return nn::Sequential(
      nn::TimeDistributed(torch::nn::Linear(4, width)), neuron.make(true),
      nn::Recurrent(neuron.make(true), torch::nn::Linear(width, width), nn::CompositeOptions().persistent_state(true)),
      torch::nn::Linear(width, 2), nn::LI(nn::LIOptions().persistent_state(true)));
}

// Checks that the losses stay the same if the network, its states and its optimizer are saved and loaded.
void check_resuming(at::Device device) {
  for (const Made& neuron : all_neurons()) {
    INFO(neuron.name);
    torch::manual_seed(3);
    const Tensor x = (at::rand({6, 3, 4}) * 4).to(device), target = at::rand({6, 3, 2}).to(device);
    nn::Sequential network = network_of(neuron);
    network->to(device);
    torch::optim::Adam optimizer(network->parameters(), 1e-2);
    for (int i = 0; i < 3; ++i) train_step(*network, optimizer, x, target);

    std::stringstream file, optimizer_file;
    torch::save(network, file);
    torch::save(optimizer, optimizer_file);
    nn::Sequential loaded = network_of(neuron);
    loaded->to(device);
    torch::optim::Adam loaded_optimizer(loaded->parameters(), 1e-2);
    torch::load(loaded, file);
    torch::load(loaded_optimizer, optimizer_file);

    CHECK(loaded->state().size() == network->state().size());
    for (int i = 0; i < 3; ++i) {
      const Tensor loss = train_step(*network, optimizer, x, target);
      CHECK(at::equal(loss, train_step(*loaded, loaded_optimizer, x, target)));
    }
  }
}

}  // namespace

TEST_CASE("training goes on from a checkpoint as if nothing had happened") { check_resuming(at::kCPU); }

TEST_CASE("training goes on from a checkpoint on a GPU") {
  if (!torch::cuda::is_available()) SPIKEFORGE_SKIP("no GPU");
  check_resuming(at::kCUDA);
}

TEST_CASE("a checkpoint holds states where they are persistent, and only there") {
  const Tensor x = at::rand({3, width}) * 3;
  for (const bool persistent : {false, true}) {
    const auto make = [&] { return nn::Izhikevich(nn::IzhikevichOptions().persistent_state(persistent)); };
    nn::Izhikevich saved = make(), loaded = make();
    CHECK(saved->named_buffers().contains("w") == persistent);
    std::stringstream before, after;
    torch::save(saved, before);
    saved(x);
    torch::save(saved, after);
    torch::load(loaded, after);
    CHECK(loaded->state("w").defined() == persistent);
    if (!persistent) continue;
    CHECK(at::equal(saved->named_buffers()["w"], saved->state("w")));
    CHECK(at::equal(saved(x), loaded(x)));
    torch::load(loaded, before);
    CHECK(!loaded->state("w").defined());
  }
}

TEST_CASE("a copy shares nothing") {
  const Tensor x = at::rand({5, 2, width}) * 3;
  for (const Made& neuron : all_neurons()) {
    INFO(neuron.name);
    nn::Sequential network = network_of(neuron);
    network->forward(x.narrow(2, 0, 4));
    network->eval();
    const auto copy = clone_of(*network);
    CHECK(!copy->is_training());
    const auto storages = [](const Stateful& m) {
      std::vector<const void*> all;
      for (const auto& list : {m.parameters(), m.buffers()})
        for (const Tensor& t : list) all.push_back(t.const_data_ptr());
      for (const auto& state : m.state()) all.push_back(state.value().const_data_ptr());
      return all;
    };
    for (const void* mine : storages(*network))
      for (const void* theirs : storages(*copy)) CHECK((mine != theirs || !mine));
    CHECK(at::equal(copy->forward(x.narrow(2, 0, 4)), network->forward(x.narrow(2, 0, 4))));
    CHECK(copy->parameters().size() == network->parameters().size());
  }
}

TEST_CASE("a checkpoint holds states of any type") {
  const Tensor x = at::rand({5, width}, at::kDouble) * 3;
  const auto make = [] {
    nn::LIF lif(nn::LIFOptions().persistent_state(true));
    lif->to(at::kDouble);
    return lif;
  };
  nn::LIF saved = make(), loaded = make();
  saved(x);
  std::stringstream file;
  torch::save(saved, file);
  torch::load(loaded, file);
  CHECK(at::equal(loaded->state("v"), saved->state("v")));
  CHECK(at::equal(loaded(x), saved(x)));
}

namespace {

// Written like torch's own modules: reset() constructs the children, and clone() copies their values into new ones.
struct OwnImpl : torch::nn::Cloneable<OwnImpl> {
  OwnImpl() { reset(); }
  void reset() override { lif = register_module("lif", nn::LIF(nn::LIFOptions().tau(nn::Learnable(2.0)))); }
  nn::LIF lif = nullptr;
};

}  // namespace

TEST_CASE("a module of torch's kind with neurons in it is cloned, reset and detached") {
  OwnImpl own;
  const Tensor x = (at::rand({5, width}) * 3).requires_grad_(true);
  own.lif(x);
  {
    const at::NoGradGuard no_grad;
    own.lif->parameters()[0].fill_(3);
  }
  const auto copy = std::dynamic_pointer_cast<OwnImpl>(own.clone());
  CHECK(copy->lif->parameters()[0].item<double>() == 3);
  CHECK(at::equal(copy->lif->state("v"), own.lif->state("v")));
  CHECK(own.lif->state("v").requires_grad());
  nn::detach_state(own);
  CHECK(!own.lif->state("v").requires_grad());
  nn::reset_state(own);
  CHECK(!own.lif->state("v").defined());
  CHECK(copy->lif->state("v").defined());
}

TEST_CASE("states follow their module to another type, float32 beside half types") {
  for (const bool persistent : {false, true}) {
    nn::LIF lif(nn::LIFOptions().tau(nn::Learnable(at::full({width}, 2.5))).persistent_state(persistent));
    const Tensor x = at::rand({4, width}) * 3;
    lif(x);
    const Tensor v = lif->state("v");
    lif->to(at::kDouble);
    CHECK(lif->state("v").scalar_type() == at::kDouble);
    CHECK(lif->parameters()[0].scalar_type() == at::kDouble);
    lif(x.to(at::kDouble));
    lif->to(at::kBFloat16);
    CHECK(lif->state("v").scalar_type() == at::kFloat);
    CHECK(lif(x.to(at::kBFloat16)).scalar_type() == at::kBFloat16);
    if (persistent) CHECK(at::equal(lif->named_buffers()["v"], lif->state("v")));
  }
}

TEST_CASE("gradients flow through calls until detach_state, and into an initial state that is set") {
  nn::LIF lif;
  const Tensor x = (at::rand({1, width})).requires_grad_(true), v = at::full({width}, .3).requires_grad_(true);
  lif->set_state("v", v);
  lif(x);
  lif(at::rand({3, width})).sum().backward({}, /*keep_graph=*/true);
  CHECK(x.grad().abs().sum().item<double>() > 0);
  CHECK(v.grad().abs().sum().item<double>() > 0);
  lif->detach_state();
  CHECK(!lif(at::rand({3, width})).requires_grad());
}

TEST_CASE("the result of a step can be detached in place and leaves the states as they are") {
  nn::LI li;
  nn::Recurrent recurrent(nn::LIF(), torch::nn::Linear(width, width));
  for (nn::Stateful* net : std::initializer_list<nn::Stateful*>{li.get(), recurrent.get()}) {
    const Tensor x = at::rand({2, width}).requires_grad_(true);
    Tensor y = net->step(x);
    CHECK(y.sizes() == x.sizes());
    CHECK_FALSE(y.is_view());
    y.sum().backward({}, /*keep_graph=*/true);
    y.detach_();
    CHECK(net->step(x).sizes() == x.sizes());
  }
}

TEST_CASE("a network whose output is delayed has the shape of its output at the initial state") {
  nn::Composite net;
  net->add("lif", nn::LIF());
  net->connect("in", "lif.in");
  net->connect("lif.out", "out", {.delay = 2});
  const Tensor x = at::rand({1, 3, width});
  CHECK(at::equal(net->at_rest({x}).at(0), at::zeros_like(x)));
}

TEST_CASE("training goes on from the states of inference mode once they are detached") {
  nn::Recurrent net(nn::LIF(), torch::nn::Linear(width, width));
  const Tensor x = at::rand({3, 2, width}) * 3;
  {
    const c10::InferenceMode inference;
    net(x);
  }
  net->detach_state();
  for (const auto& state : net->state()) CHECK_FALSE(state.value().is_inference());
  net(x).sum().backward();
  CHECK(net->parameters()[0].grad().defined());
}

TEST_CASE("input that does not fit the states is refused, naming the module, and changes nothing") {
  nn::Sequential network;
  network->push_back("hidden", nn::Sequential(nn::LIF()));
  network->forward(at::rand({2, 4, width}));
  const Tensor v = network->state("hidden.0.v");
  CHECK(message_of([&] {
          network->forward(at::rand({2, 5, width}));
        }) ==
        "LIF 'hidden.0': the state v has shape [4, 6], but a step of the input has [5, 6]; call reset() to restart");
  CHECK(message_of([&] {
          network->forward(at::rand({2, 4, width}, at::kDouble));
        }) ==
        "LIF 'hidden.0': the state v is Float, but the input is Double, whose states are Double; call reset() to "
        "restart");
  CHECK(message_of([&] {
          network->forward(at::rand({2, 4, width}, at::kMeta));
        }).starts_with("LIF 'hidden.0': the state v is on cpu, but the input is on meta"));
  CHECK(network->state("hidden.0.v").is_same(v));
  network->reset();
  network->forward(at::rand({2, 5, width}));

  nn::Recurrent recurrent(nn::LIF(), torch::nn::Linear(width, width));
  recurrent(at::rand({2, 4, width}));
  recurrent->set_state("cell.v", {});
  CHECK_THAT(message_of([&] { recurrent(at::rand({2, 5, width})); }), has_text("Recurrent: "));
}

TEST_CASE("mistakes in words") {
  using namespace nn;
  LIF lif;
  CHECK(message_of([&] { lif->state("w"); }) == "LIF: there is no state 'w'; LIF has v");
  CHECK(message_of([&] { lif->set_state("a.v", {}); }) == "LIF: there is no module with states at 'a'");
  CHECK(message_of([&] { lif(at::Tensor()); }) == "LIF: x_seq must be [T, *shape], but is undefined");
  CHECK(message_of([] { PLIFOptions().init_tau(1); }) == "PLIF: init_tau must be finite and above 1, but is 1");
  CHECK(message_of([] { LIF(LIFOptions().tau(0).strict(true)); }) == "LIF: tau must be finite and above 0, but is 0");
  CHECK(message_of([] { LIF(LIFOptions().tau(at::Tensor())); }) == "LIF: tau is an undefined tensor");
  CHECK(message_of([] { IF(IFOptions().strict(true).spiking(false)); }) ==
        "IF: as a traced cell it needs spiking(true)");
  const std::string text = adaptive;
  CHECK(message_of([&] { nn::Neuron(NeuronOptions(text).param("tau", 2)); }) ==
        "alif: the parameter beta is missing; set it by NeuronOptions(...).param(\"beta\", value)");
  CHECK(message_of([&] { nn::Neuron(NeuronOptions(text).param("tau", 2).param("beat", 2)); }) ==
        "alif: it has no parameter beat; its parameters: tau, beta");
  CHECK(message_of([] { TimeDistributed{LIF()}; }) == "TimeDistributed: LIF has states and needs no TimeDistributed");
  CHECK(message_of([] { Latency(0); }) == "Latency: steps must be at least 1, but is 0");
}

TEST_CASE("a module prints its constants") {
  std::ostringstream text;
  text << nn::LIF(nn::LIFOptions().tau(nn::Learnable(at::full({8}, 2.0))).v_reset(std::nullopt)) << '\n'
       << nn::Neuron(nn::NeuronOptions(std::string(adaptive)).param("tau", 2).param("beta", nn::Learnable(.3)));
  CHECK(text.str() ==
        "LIF(tau=[8] learned, v_threshold=1, soft reset, surrogate=sigmoid)\n"
        "alif(x; v, a; tau=2, beta=0.3 learned)");
}

}  // namespace spikeforge::test
