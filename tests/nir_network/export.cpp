#include "csrc/nir/read.h"
#include "csrc/nir/write.h"
#include "csrc/nn/containers.h"
#include "csrc/nn/delay.h"
#include "csrc/nn/neuron.h"
#include "csrc/nn/neuron_module.h"
#include "csrc/nn/neurons.h"
#include "csrc/nn/time_distributed.h"
#include "csrc/torchscript/torchscript.h"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "tests/nir_network/graphs.h"

namespace {

using namespace spikeforge;
using namespace spikeforge::test;

// Writes the graph to a file and reads it.
nn::Composite again(const nir::Graph& graph, const nir::ModuleOptions& options) {
  std::string file = "/tmp/spikeforge_nir_XXXXXX";
  ::close(::mkstemp(file.data()));
  nir::write(graph, file);
  const nir::Graph read = nir::read(file);
  std::remove(file.c_str());
  return nir::to_module(read, options);
}

// The same bits after export and import.
void check_round_trip(const nn::Part& part, const at::Tensor& x, nir::Report* report = nullptr) {
  nn::Part original = part.clone();
  if (original.stateful()) original.stateful()->reset();
  const auto dtype = x.scalar_type();
  nn::Composite net = again(nir::from_module(part, x[0][0], dt, report), {.dt = dt, .dtype = dtype});
  const nn::Tensors expected = original.run({&x, 1}, x.size(0));
  const at::Tensor y = net->forward(x);
  CHECK(y.abs().sum().item<double>() > 0);
  CHECK(at::equal(y, expected[0]));
}

at::Tensor input(std::initializer_list<std::int64_t> shape) { return inputs(shape, c10::kFloat).abs() * 1.5; }

std::string refused(const nn::Part& part, const at::Tensor& x) {
  return message_of<nir::Error>([&] { nir::from_module(part, x, dt); });
}

}  // namespace

TEST_CASE("every neuron is read from a file with the same bits, also with soft resets") {
  const at::Tensor x = input({30, 3, 4}), taus = at::full({4}, 2.0) + at::arange(4) * .3;
  for (const bool strict : {false, true}) {
    check_round_trip(nn::IF(nn::IFOptions().strict(strict)), x);
    check_round_trip(nn::IF(nn::IFOptions().v_reset(std::nullopt).v_threshold(taus)), x);
    check_round_trip(nn::LIF(nn::LIFOptions().tau(3.0).v_reset(-.3).strict(strict)), x);
    check_round_trip(nn::LIF(nn::LIFOptions().tau(taus).v_reset(std::nullopt).decay_input(false)), x);
    check_round_trip(nn::LIF(nn::LIFOptions().tau(nn::Learnable(1.7)).surrogate("atan", {3})), x);
    check_round_trip(nn::PLIF(nn::PLIFOptions().init_tau(2.7).strict(strict)), x);
    check_round_trip(nn::CubaLIF(nn::CubaLIFOptions().tau_synapse(3.0).tau_membrane(taus).strict(strict)), x);
    check_round_trip(nn::CubaLIF(nn::CubaLIFOptions().v_reset(std::nullopt).decay_input(false)), x);
    check_round_trip(nn::LI(nn::LIOptions().tau(taus).v_rest(.2)), x);
    check_round_trip(nn::LI(nn::LIOptions().tau(3.0).decay_input(false)), x);
  }
}

TEST_CASE("a weight that is lazily negated is written with its sign") {
  torch::nn::Linear layer(3, 2);
  const at::Tensor x = input({4, 5, 3});
  {
    const at::NoGradGuard no_grad;
    layer->weight.set_data(at::_neg_view(layer->weight.detach().clone()));
  }
  REQUIRE(layer->weight.is_neg());
  nn::Composite net = again(nir::from_module(layer, x[0][0], dt), {.dt = dt});
  CHECK(at::equal(net->parameters()[0], layer->weight));
}

TEST_CASE("layers, sequences and networks within networks come back with the same bits") {
  const auto conv = [](std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, {3, 2}).stride({1, 2}).padding({1, 0}).bias(in == 1));
  };
  nn::Sequential net(conv(1, 4), nn::IF(nn::IFOptions().v_threshold(.3)), nn::TimeDistributed(conv(4, 6)),
                     nn::LIF(nn::LIFOptions().v_threshold(.05)), torch::nn::AvgPool2d(torch::nn::AvgPool2dOptions(2)),
                     torch::nn::Dropout(.5), torch::nn::Flatten(),
                     nn::Sequential(torch::nn::Linear(18, 8), nn::PLIF(nn::PLIFOptions().v_threshold(.02))),
                     nn::Delay(2), nn::Recurrent(nn::LIF(nn::LIFOptions().v_threshold(.02)), torch::nn::Linear(8, 8)),
                     torch::nn::Linear(torch::nn::LinearOptions(8, 3).bias(false)), nn::LI());
  net->eval();
  round_parameters(*net);
  check_round_trip(net, input({12, 2, 1, 6, 14}) * 2);
}

TEST_CASE("a small convolutional network exported with dt = 1e-4 fires as before, as a module and as TorchScript") {
  constexpr double step = 1e-4;
  const auto conv = [](std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(in == 1));
  };
  const auto lif = [](double threshold) { return nn::LIF(nn::LIFOptions().v_threshold(threshold)); };
  nn::Sequential net(conv(1, 8), nn::IF(nn::IFOptions().v_threshold(.5)), torch::nn::AvgPool2d(2), conv(8, 12),
                     lif(.02), torch::nn::AvgPool2d(2), torch::nn::Flatten(), torch::nn::Linear(12 * 7 * 7, 10),
                     lif(.01));
  round_parameters(*net);
  net->eval();
  const c10::NoGradGuard no_grad;
  const at::Tensor x = inputs({12, 2, 1, 28, 28}, c10::kFloat).clamp(0, 1), expected = net->forward(x);
  CHECK(expected.sum().item<double>() > 5);
  CHECK(expected.sum().item<double>() < 0.95 * static_cast<double>(expected.numel()));

  const nir::Graph graph = nir::from_module(net, x[0][0], step);
  nn::Composite back = again(graph, {.dt = step});
  CHECK(at::equal(back->forward(x), expected));
  back->reset();
  torch::jit::Module script = to_torchscript(*back, x);
  CHECK(at::equal(script.forward({x}).toTensor(), expected));
  // Without the metadata that the export adds, as another program would read the graph, firing at the threshold must be
  // requested.
  CHECK(at::equal(again(graph, {.dt = step, .comparison = nir::Comparison::ge})->forward(x), expected));
}

TEST_CASE("branches, repeated connections and delays of connections come back with the same bits") {
  nn::Composite net;
  net->add("a", nn::LIF());
  net->add("b", torch::nn::Linear(4, 4));
  net->add("c", nn::CubaLIF());
  net->connect("in", "a.in");
  net->connect("a.out", "b.in", {.delay = 3, .shape = {2, 4}});
  net->connect("b.out", "c.in");
  net->connect("a.out", "c.in");
  net->connect("a.out", "c.in", {.repeated = true});
  net->connect("c.out", "a.in", {.delay = 2});
  net->connect("c.out", "out");
  net->connect("in", "out", {.delay = 1});
  round_parameters(*net);
  check_round_trip(net, input({30, 2, 4}));
}

TEST_CASE("an imported graph is exported as it was") {
  const nir::Graph graph = network();
  nn::Composite net = nir::to_module(graph, in_float64());
  nn::Composite back = nir::to_module(nir::from_module(net, at::zeros({2, 4, 5}, c10::kDouble), dt), in_float64());
  const at::Tensor x = inputs({60, 2, 4, 5}) + .5, y = net->forward(x);
  CHECK(y.sum().item<double>() > 10);
  CHECK(at::equal(y, back->forward(x)));

  nir::ModuleOptions options = in_float64();
  options.reset = nir::Reset::subtract_delayed;
  options.comparison = nir::Comparison::ge;
  options.cuba_current = nir::CubaCurrent::previous;
  nn::Composite other = nir::to_module(graph, options);
  nn::Composite other_back =
      nir::to_module(nir::from_module(other, at::zeros({2, 4, 5}, c10::kDouble), dt), in_float64());
  const at::Tensor other_y = other->forward(x);
  CHECK(at::equal(other_y, other_back->forward(x)));
  CHECK(!at::equal(other_y, y));
}

TEST_CASE("an imported graph keeps its names and metadata, also in a copy, and constants that broadcast become whole") {
  using namespace nir;
  const auto noted = [](const char* text) { return Group{{{"note", Strings::one(text)}}}; };
  const Array one = Array::full({}, .5);
  Graph inner{{{"in", {Input{{2, 3}}, noted("in")}}, {"li", {LI{one, one, one}, noted("li")}}, {"out", {Output{}, {}}}},
              {{"in", "li"}, {"li", "out"}},
              noted("inner")};
  const Graph graph{{{"a.b", {IF{Array::full({2, 1}, 100), one, one}, noted("a.b")}},
                     {"a_b", {Scale{Array::full({1}, 2)}, {}}},
                     {"inner", {inner, {}}},
                     {"to", {Output{}, noted("to")}},
                     {"x.0", {Input{{2, 3}}, noted("x.0")}}},
                    {{"x.0", "a.b"}, {"a.b", "a_b"}, {"a_b", "inner"}, {"inner", "to"}},
                    noted("whole")};
  ModuleOptions options = in_float64();
  options.shapes = ShapeRule::tolerant;
  nn::Composite net = to_module(graph, options);
  Graph expected = graph;
  fill_in_shapes(expected);
  const at::Tensor example = at::zeros({2, 3}, c10::kDouble);
  CHECK(from_module(net, example, dt) == expected);
  CHECK(from_module(nn::Part(net).clone(), example, dt) == expected);
}

TEST_CASE("bounds of learned constants come back") {
  nn::Sequential net(nn::LIF(nn::LIFOptions()
                                 .tau(nn::Learnable(1.5, {.min = 1.2}))
                                 .v_threshold(nn::Learnable(.5, {.min = .25, .max = 2.}))),
                     nn::LI(nn::LIOptions().tau(nn::Learnable(3.0, {.max = 4.}))));
  nn::Composite back = again(nir::from_module(net, at::zeros({4}), dt), {.dt = dt});
  const auto bounds = [&](const char* path, const char* name) {
    return std::dynamic_pointer_cast<nn::NeuronModule>(back->named_children()[path])->bounds_of(name);
  };
  CHECK(bounds("0", "tau").min == 1.2);
  CHECK(!bounds("0", "tau").max);
  CHECK(bounds("0", "v_threshold").min == .25);
  CHECK(bounds("0", "v_threshold").max == 2.);
  CHECK(bounds("1", "tau").max == 4.);
}

TEST_CASE("properties without a NIR field are reported once, and do not affect other exports") {
  nn::Sequential net(nn::LIF(nn::LIFOptions().v_reset(std::nullopt)), nn::LIF(nn::LIFOptions().v_reset(std::nullopt)));
  nir::Report report;
  nir::Graph graph = nir::from_module(net, at::zeros({4}), dt, &report);
  REQUIRE(report.warnings.size() == 1);
  for (const char* const what : {"soft reset", "threshold itself", "(0, 1)"})
    CHECK_THAT(report.warnings[0], has_text(what));

  const auto first = [](const nn::Composite& made) { return made->named_children()["0"]; };
  CHECK(std::dynamic_pointer_cast<nn::LIFImpl>(first(nir::to_module(graph, {.dt = dt}))));
  // With a different dt, option or field, the fields of the node take precedence over the metadata.
  CHECK(!std::dynamic_pointer_cast<nn::LIFImpl>(first(nir::to_module(graph, {.dt = dt / 2}))));
  CHECK(!std::dynamic_pointer_cast<nn::LIFImpl>(
      first(nir::to_module(graph, {.dt = dt, .comparison = nir::Comparison::ge}))));
  for (nir::NamedNode& node : graph.nodes)
    if (auto* lif = std::get_if<nir::LIF>(&node.node.kind)) lif->v_threshold = nir::Array::full({4}, .5);
  CHECK(!std::dynamic_pointer_cast<nn::LIFImpl>(first(nir::to_module(graph, {.dt = dt}))));
}

TEST_CASE("a module that NIR cannot express is refused by name") {
  const at::Tensor x = at::zeros({4});
  CHECK_THAT(refused(nn::Sequential(nn::IF(), nn::QIF()), x), has_text("node 1: NIR has no node for"));
  nn::Sequential outer;
  outer->push_back("inner", nn::Sequential(nn::EIF()));
  CHECK_THAT(refused(outer, x), has_text("node inner/0: "));
  CHECK_THAT(refused(nn::IF(nn::IFOptions().spiking(false)), x), has_text("spiking(false)"));
  CHECK_THAT(refused(nn::Sequential(torch::nn::BatchNorm1d(4)), x), has_text("BatchNorm"));
  CHECK_THAT(refused(nn::Sequential(torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(0))), x),
             has_text("the batch"));
  CHECK_THAT(refused(nn::Sequential(torch::nn::AvgPool2d(torch::nn::AvgPool2dOptions(2).ceil_mode(true))),
                     at::zeros({1, 4, 4})),
             has_text("ceil_mode"));
}
