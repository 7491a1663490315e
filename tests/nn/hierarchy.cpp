// Names, ports, delays and loops of networks; simulations and what they record.
#include "csrc/nn/containers.h"
#include "csrc/nn/encoders.h"
#include "csrc/nn/monitor.h"
#include "csrc/nn/npy.h"
#include "csrc/nn/simulation.h"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <sys/stat.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/nn/modules.h"

namespace spikeforge::test {
namespace {

torch::nn::Linear linear(double weight) {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  const at::NoGradGuard no_grad;
  layer->weight.fill_(weight);
  return layer;
}

std::vector<double> numbers(const Tensor& t) {
  const Tensor flat = t.to(at::kDouble).flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

Tensor column(std::vector<double> values) { return at::tensor(values).to(at::kFloat).unsqueeze(1); }

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// std::filesystem is not used, because libtorch.so exports an older copy of it.
struct Folder {
  std::string path = "/tmp/spikeforge_nn_" + std::to_string(::getpid());
  Folder() { ::mkdir(path.c_str(), 0700); }
  ~Folder() {
    for (const char* file : {"/run.csv", "/a/b/0.v.npy", "/a/b/0.out.npy", "/a/b", "/a", ""})
      std::remove((path + file).c_str());
  }
};

}  // namespace

TEST_CASE("a connection delivers the values of `delay` steps ago, zeros at first; several are summed") {
  nn::Composite net;
  net->add("twice", linear(2));
  net->connect("in", "twice.in");
  net->connect("twice.out", "out", {.delay = 3});
  net->connect("in", "out", {.delay = 1});
  CHECK(numbers(net->forward(column({1, 2, 3, 4, 5}))) == std::vector<double>{0, 1, 2, 3 + 2, 4 + 4});
  CHECK(numbers(net->state("twice_out_to_out")) == std::vector<double>{6, 8, 10});
  CHECK(numbers(net->step(at::zeros({1}))) == std::vector<double>{5 + 6});
  net->set_state("twice_out_to_out", column({7, 8, 9}));
  CHECK(numbers(net->forward(column({0, 0}))) == std::vector<double>{7, 8});
  net->reset();
  CHECK(numbers(net->forward(column({1, 1}))) == std::vector<double>{0, 1});
}

TEST_CASE("a loop runs with a delay on it: a Fibonacci sequence") {
  nn::Composite net;
  net->add("sum", linear(1));
  net->connect("in", "sum.in");
  net->connect("sum.out", "sum.in", {.delay = 1});
  net->connect("sum.out", "sum.in", {.delay = 2});
  net->connect("sum.out", "out");
  CHECK(numbers(net->forward(column({1, 0, 0, 0, 0, 0, 0}))) == std::vector<double>{1, 1, 2, 3, 5, 8, 13});
}

TEST_CASE("a loop without a delay is refused and spelled out") {
  nn::Composite net;
  for (const char* name : {"a", "b", "c"}) net->add(name, linear(1));
  net->connect("a.out", "b.in");
  net->connect("b.out", "c.in");
  CHECK(message_of([&] { net->connect("c.out", "a.in"); }) ==
        "Composite: connecting 'c.out' to 'a.in' closes the loop a -> b -> c -> a without a delay; give one of its "
        "connections {.delay = 1} or more");
  CHECK_THAT(message_of([&] { net->connect("b.out", "a.in"); }), has_text("the loop a -> b -> a without"));
  CHECK_THAT(message_of([&] { net->connect("a.out", "a.in"); }), has_text("the loop a -> a without"));
  net->connect("c.out", "a.in", {.delay = 1});
}

TEST_CASE("a loop that nothing feeds but itself starts from the shape it is given") {
  const auto make = [](const std::vector<std::int64_t>& shape) {
    nn::Composite net;
    net->add("a", nn::IF());
    net->add("b", nn::IF());
    net->connect("a.out", "b.in", {.delay = 1, .shape = shape});
    net->connect("b.out", "a.in", {.delay = 1, .shape = shape});
    net->connect("a.out", "out");
    return net;
  };
  nn::Simulation simulation(make({2}));
  simulation.set("a.v", at::tensor({1.f, .5f}));
  CHECK(numbers(simulation.run(5)[0]) == std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1, 0});
  CHECK_THAT(message_of([&] { nn::Simulation(make({})).run(1); }),
             has_text("every input of 'a.in' is still in flight at the first step"));
}

TEST_CASE("an alias is the inner variable itself, to read and to write, through every level") {
  nn::Composite inner, outer;
  torch::nn::Linear dense(2, 2);
  inner->add("dense", dense);
  inner->add("lif", nn::LIF());
  inner->connect("in", "dense.in");
  inner->connect("dense.out", "lif.in");
  inner->connect("lif.out", "out");
  inner->alias("weights", dense->weight);
  inner->alias("v", "lif.v", {{2}});
  outer->add("layer", inner);
  outer->connect("in", "layer.in");
  outer->connect("layer.out", "out");
  outer->alias("w", "layer.weights");

  CHECK(outer->get("w").is_same(dense->weight));
  outer->set("w", at::eye(2));
  CHECK(at::equal(dense->weight, at::eye(2)));
  {
    const at::NoGradGuard no_grad;
    outer->get("layer.weights").mul_(2);
  }
  CHECK(dense->weight.sum().item<double>() == 4);

  CHECK(!outer->get("layer.v").defined());
  outer->set("layer.v", at::tensor({.25f, .5f}));
  CHECK(at::equal(inner->state("lif.v"), at::tensor({.25f, .5f})));
  {
    const at::NoGradGuard no_grad;
    outer->step(at::zeros({2}));
    outer->get("layer.v").fill_(.125);
  }
  CHECK(at::equal(inner->get("v"), at::full({2}, .125f)));

  CHECK(message_of([&] { inner->set("v", at::zeros({3})); }) ==
        "Composite 'layer': 'v' has shape [2], but the new value has [3]");
  CHECK(
      message_of([&] { inner->alias("u", "lif.u"); }) ==
      "Composite 'layer': the alias 'u' must name a state, parameter or buffer of a part below, which 'lif.u' is not");
  CHECK(message_of([&] { inner->alias("b", "dense.bias", {{3}}); }) ==
        "Composite 'layer': the alias 'b' is to have shape [3], but 'dense.bias' has shape [2]");
  CHECK_THAT(message_of([&] { inner->alias("b", at::zeros({2})); }), has_text("which this tensor is not"));
  CHECK(message_of([&] { inner->alias("v", "dense.bias"); }) == "Composite 'layer': alias 'v': the name is taken");

  const auto copy = clone_of(*outer);
  auto& network = dynamic_cast<nn::CompositeImpl&>(*copy);
  CHECK(at::equal(network.get("w"), outer->get("w")));
  network.set("w", at::zeros({2, 2}));
  CHECK(dense->weight.sum().item<double>() == 4);
}

TEST_CASE("mistakes in a network in words") {
  nn::Composite net;
  net->add("lif", nn::LIF());
  CHECK(message_of([&] { net->add("lif", nn::LIF()); }) == "Composite: part 'lif': the name is taken");
  CHECK(message_of([&] { net->add("a.b", nn::LIF()); }) == "Composite: part 'a.b' must be a name without dots");
  CHECK(message_of([&] { net->connect("in", "lif.x"); }) == "Composite: 'lif' has no input 'x'; it has in");
  CHECK(message_of([&] { net->connect("fil.out", "out"); }) ==
        "Composite: there is no part 'fil' for the port 'fil.out'");
  CHECK(message_of([&] { net->connect("in", "lif.in", {.delay = -1}); }) ==
        "Composite: the delay from 'in' to 'lif.in' must be 0 or more steps, but is -1");
  CHECK(message_of([&] { net->run({}, 1); }) == "Composite: nothing is connected to 'lif.in'");
  net->connect("in", "lif.in");
  CHECK(message_of([&] { net->connect("in", "lif.in"); }) == "Composite: 'in' is connected to 'lif.in' already");
  CHECK(message_of([&] { net->run({}, 1); }) == "Composite: takes 1 inputs (in), but got 0");
  CHECK(message_of([&] { net->forward(at::zeros({1, 2})); }) == "Composite: it has no output");
  CHECK(message_of([&] { net->get("lif.u"); }) == "Composite: there is no state, parameter, buffer or alias 'lif.u'");
  CHECK(message_of([&] { nn::Monitor(net, {"lif.u"}); }) ==
        "Composite: cannot record 'lif.u': there is no such state or output");
  net->connect("in", "lif.in", {.delay = 2});
  net->reset();
  net->run({at::zeros({3, 4})}, 3);
  net->set_state("lif.v", {});
  CHECK(message_of([&] {
          net->run({at::zeros({3, 5})}, 3);
        }) ==
        "Composite: the state in_to_lif_in holds values of shape [4] (Float, cpu), but the new values have shape [5] "
        "(Float, cpu); call "
        "reset() to restart");

  nn::Composite loop;
  loop->add("e", nn::LIF());
  loop->add("there", torch::nn::Linear(6, 4));
  loop->add("i", nn::LIF());
  loop->add("back", torch::nn::Linear(4, 6));
  loop->connect("x", "e.in");
  loop->connect("e.out", "there.in", {.delay = 1});
  loop->connect("there.out", "i.in");
  loop->connect("y", "i.in");
  loop->connect("i.out", "back.in");
  loop->connect("back.out", "e.in");
  loop->connect("e.out", "out");
  loop->run({at::zeros({2, 3, 6}), at::zeros({2, 3, 4})}, 2);
  CHECK(
      message_of([&] {
        loop->run({at::zeros({2, 3, 6}), at::zeros({2, 3, 5})}, 2);
      }) ==
      "Composite: 'y' returns a step of shape [3, 5], but 'i.in' takes [3, 4] from other parts; the shapes must match");
}

TEST_CASE("a simulation goes on where it stopped, and monitors see every step") {
  const auto make = [](bool looped) {
    torch::manual_seed(5);
    nn::Composite net;
    net->add("dense", torch::nn::Linear(4, width));
    net->add("layer", nn::Sequential(nn::LIF(), torch::nn::Linear(width, width), nn::CubaLIF()));
    net->connect("in", "dense.in");
    net->connect("dense.out", "layer.in");
    net->connect("layer.out", "out", {.delay = 2});
    if (looped) net->connect("layer.out", "layer.in", {.delay = 1});
    return net;
  };
  const nn::Names all = {"dense.out", "layer.0.v", "layer.0.out", "layer.2.i", "layer.out", "out", "layer_out_to_out"};
  const Tensor x = at::rand({600, 2, 4}) * 4;
  for (const bool looped : {false, true}) {
    INFO("looped " << looped);
    nn::Composite net = make(looped), stepped = make(looped);
    nn::Simulation simulation(net);
    Tensors outputs;
    { const nn::Monitor gone(net, {"layer.0.v"}); }
    const nn::Monitor monitor(net, all);
    for (const auto& [from, length] : {std::pair(0, 1), {1, 99}, {100, 500}})
      outputs.push_back(simulation.run(x.narrow(0, from, length))[0]);
    CHECK(simulation.steps() == 600);

    const at::NoGradGuard no_grad;
    std::map<std::string, Tensors> rows;
    const nn::Monitor one_by_one(stepped, {"dense.out", "layer.0.out", "layer.out"});
    for (const Tensor& row : x.unbind(0)) {
      rows["out"].push_back(stepped->step(row));
      for (const char* name : {"layer.0.v", "layer.2.i", "layer_out_to_out"}) rows[name].push_back(stepped->get(name));
    }
    CHECK(at::equal(monitor["out"], at::cat(outputs)));
    for (const std::string& name : all) {
      INFO(name);
      const Tensor expected = rows.contains(name) ? at::stack(rows[name]) : one_by_one[name];
      CHECK(at::equal(monitor[name], expected));
      CHECK(monitor[name].size(0) == 600);
    }
    CHECK(monitor["layer.out"].sum().item<double>() > 0);
  }
}

TEST_CASE("variables are read and written between runs") {
  nn::Sequential net(nn::IF(nn::IFOptions().v_threshold(nn::Learnable(10.))));
  nn::Simulation simulation(net);
  simulation.run(3, at::ones({2}));
  CHECK(numbers(simulation.get("0.v")) == std::vector<double>{3, 3});
  simulation.set("0.v", at::tensor({8.f, 1.f}));
  simulation.set("0.v_threshold", at::scalar_tensor(9.));
  CHECK(numbers(simulation.run(1, at::ones({2}))[0]) == std::vector<double>{1, 0});
  CHECK(numbers(simulation.get("0.v")) == std::vector<double>{0, 2});
}

TEST_CASE("recordings become .npy and CSV files") {
  const Folder folder;
  nn::Sequential net(nn::IF(nn::IFOptions().v_threshold(3)));
  const nn::Monitor monitor(net, {"0.v", "0.out"});
  nn::Simulation(net).run(3, at::tensor({1.f, 1.5f}));
  monitor.write_csv(folder.path + "/run.csv");
  CHECK(text_of_file(folder.path + "/run.csv") ==
        "step,0.v[0],0.v[1],0.out[0],0.out[1]\n0,1,1.5,0,0\n1,2,0,0,1\n2,0,1.5,1,0\n");

  monitor.write_npy(folder.path + "/a/b");
  const std::string file = text_of_file(folder.path + "/a/b/0.v.npy");
  CHECK(file.substr(0, 8) == std::string("\x93NUMPY\1\0", 8));
  REQUIRE(file.size() == 128 + 6 * sizeof(float));
  CHECK(file.substr(10, 58) == "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2, )");
  CHECK(file[127] == '\n');
  const auto* values = reinterpret_cast<const float*>(file.data() + 128);
  CHECK(std::vector<float>(values, values + 6) == std::vector<float>{1, 1.5, 2, 0, 0, 1.5});
  nn::write_npy(folder.path + "/run.csv", at::_neg_view(at::tensor({1.f, -2.f})));
  CHECK(numbers(nn::read_npy(folder.path + "/run.csv")) == std::vector<double>{-1, 2});
  CHECK_THAT(message_of([&] { nn::write_npy(folder.path + "/c.npy", at::zeros({1}, at::kComplexFloat)); }),
             has_text("write_npy: NumPy has no type for ComplexFloat"));
}

namespace {

struct FailingImpl : torch::nn::Module {
  bool fails = false;
  Tensor forward(const Tensor& x) const {
    TORCH_CHECK_VALUE(!fails, "a part that fails");
    return x;
  }
};

}  // namespace

TEST_CASE("a call of which a part fails leaves all states as they were, at every level") {
  const auto failing = std::make_shared<FailingImpl>();
  nn::Composite inner, net;
  inner->add("lif", nn::LIF());
  inner->connect("in", "lif.in");
  inner->connect("lif.out", "out", {.delay = 2});
  net->add("first", inner);
  net->add("loop", nn::Recurrent(nn::LIF(), torch::nn::Linear(width, width),
                                 nn::CompositeOptions().persistent_state(true).step_loops(true)));
  net->add("failing", failing);
  net->add("e", nn::LIF());
  net->connect("in", "first.in");
  net->connect("first.out", "loop.in");
  net->connect("first.out", "e.in");
  net->connect("e.out", "e.in", {.delay = 1});
  net->connect("e.out", "failing.in", {.delay = 3});
  net->connect("failing.out", "out");
  const at::NoGradGuard no_grad;
  const auto all = [&] {
    std::map<std::string, Tensor> values;
    for (const auto& tensors : {net->state(), net->named_buffers()})
      for (const auto& item : tensors) values[item.key()] = item.value().clone();
    return values;
  };
  for (const std::int64_t steps : {4, 1}) {
    net->forward(at::rand({4, 2, width}) * 3);
    const auto before = all();
    failing->fails = true;
    CHECK_THAT(message_of([&] { net->forward(at::rand({steps, 2, width}) * 3); }), has_text("a part that fails"));
    failing->fails = false;
    const auto after = all();
    REQUIRE(after.size() == before.size());
    for (const auto& [name, value] : before) {
      INFO(name);
      CHECK(at::equal(after.at(name), value));
    }
  }
}

TEST_CASE("finding the values before the first step draws no random numbers") {
  nn::Neuron noisy(nn::NeuronOptions("neuron noisy(x) { return x + uniform() }"));
  const Tensor x = at::ones({1, 4});
  const std::vector<nn::Part> parts = {nn::Poisson(), noisy};
  for (const nn::Part& part : parts) {
    at::manual_seed(4);
    const Tensor expected = at::rand({3});
    at::manual_seed(4);
    CHECK(at::equal(part.stateful()->at_rest({x})[0], at::zeros({1, 4})));
    CHECK(at::equal(at::rand({3}), expected));
  }
}

TEST_CASE("a network of 20,000 parts is built soon, forwards, backwards and as a Sequential") {
  constexpr int count = 20000;
  const auto name = [](int i) { return "part" + std::to_string(i); };
  const auto start = std::chrono::steady_clock::now();
  nn::Sequential sequence;
  for (int i = 0; i < count; ++i) sequence->push_back(name(i), nn::Repeat());
  for (const bool backwards : {false, true}) {
    nn::Composite net;
    for (int i = 0; i < count; ++i) net->add(name(i), nn::Repeat());
    for (int i = 1; i < count; ++i) {
      const int k = backwards ? count - i : i;
      net->connect(name(k - 1) + ".out", name(k) + ".in", {.delay = k % 2});
    }
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

#ifndef SPIKEFORGE_SANITIZED
TEST_CASE("creating, running and destroying networks leaves memory flat") {
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    std::size_t size = 0, pages = 0;
    file >> size >> pages;
    return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
  };
  const Tensor x = at::rand({8, 4, 64});
  const auto cycle = [&] {
    nn::Sequential net(torch::nn::Linear(64, 64), nn::LIF(), nn::Recurrent(nn::CubaLIF(), torch::nn::Linear(64, 64)));
    const nn::Monitor monitor(net, {"1.v", "2.out"});
    nn::Simulation(net).run(x);
  };
  for (int i = 0; i < 200; ++i) cycle();
  const double before = resident();
  for (int i = 0; i < 2000; ++i) cycle();
  CHECK(resident() - before < 4);  // MiB; a leak of 2 KiB per cycle would exceed it
}
#endif

}  // namespace spikeforge::test
