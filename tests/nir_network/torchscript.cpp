#include "csrc/nir/network/torchscript.h"
#include "csrc/nn/containers.h"
#include "csrc/nn/neurons.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/linear.h>

#include "tests/nir_network/graphs.h"

using namespace spikeforge;
using namespace spikeforge::test;

namespace {

// As tests/nir_network/graphs.h, with names in the order of a file.
nir::Graph sorted(nir::Graph graph) {
  std::sort(graph.nodes.begin(), graph.nodes.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return graph;
}

const nir::Node& node(const nir::Graph& graph, const std::string& name) { return graph.find(name)->node; }

}  // namespace

TEST_CASE("a graph comes back from its TorchScript as it was, whatever the module's type and options are") {
  const nir::Graph graph = network();
  std::vector<nir::ModuleOptions> all(5, {.dt = dt});
  all[1].dtype = c10::kDouble;
  all[2].dtype = c10::kBFloat16;
  all[3].fold_time = true;
  all[4].learn_neurons = true;
  all[4].reset = nir::Reset::subtract;
  for (const nir::ModuleOptions& options : all)
    CHECK(nir::from_torchscript(nir::to_torchscript(graph, options)) == graph);
}

TEST_CASE("a graph that was given unsorted comes back by name") {
  nir::Graph graph = network();
  std::reverse(graph.nodes.begin(), graph.nodes.end());
  const nir::Graph back = nir::from_torchscript(nir::to_torchscript(graph, {.dt = dt}));
  CHECK(back == graph);
  CHECK(back.nodes.front().name == sorted(graph).nodes.front().name);
}

TEST_CASE("metadata of every kind come back") {
  nir::Graph graph = network();
  graph.metadata.members = {{"empty", nir::Group{}},
                            {"words", nir::Strings{{2}, {"\xc3\xa4", ""}}},
                            {"big", nir::Array::full({2}, 1e18, nir::DType::uint64)},
                            {"flag", nir::Array::scalar(1, nir::DType::boolean)},
                            {"nothing", nir::Array(nir::DType::float32, {0, 3})}};
  graph.nodes[0].node.metadata = graph.metadata;
  CHECK(nir::from_torchscript(nir::to_torchscript(graph, {.dt = dt})) == graph);
}

TEST_CASE("a bias that is one number stays one while all are equal, and becomes one for each output") {
  nir::Graph graph = network();
  std::get<nir::Affine>(graph.nodes[3].node.kind).bias = nir::Array::scalar(.1);
  torch::jit::Module script = nir::to_torchscript(graph, {.dt = dt});
  CHECK(nir::from_torchscript(script) == graph);
  const at::NoGradGuard no_grad;
  at::Tensor bias = script.attr("dense").toModule().attr("bias").toTensor();
  bias.fill_(.25);
  CHECK(std::get<nir::Affine>(node(nir::from_torchscript(script), "dense").kind).bias == nir::Array::scalar(.25));
  bias[0] = 1;
  const nir::Graph back = nir::from_torchscript(script);
  CHECK(std::get<nir::Affine>(node(back, "dense").kind).bias == nir::Array::of<double>({5}, {1, .25, .25, .25, .25}));
}

TEST_CASE("a neuron that is learned in its own constants has the fields that belong to them") {
  nn::Sequential net(torch::nn::Linear(4, 3), nn::PLIF(nn::PLIFOptions().init_tau(2.7)),
                     nn::LIF(nn::LIFOptions().tau(nn::Learnable(at::full({3}, 1.7)))), nn::LIF());
  round_parameters(*net);
  const nir::Graph graph = nir::from_module(net, at::zeros({4}), dt);
  torch::jit::Module script = nir::to_torchscript(graph, {.dt = dt});
  CHECK(nir::from_torchscript(script) == graph);

  const at::NoGradGuard no_grad;
  script.attr("1").toModule().attr("w").toTensor().fill_(1);
  const nir::Graph back = nir::from_torchscript(script);
  const double tau = dt * (1 + std::exp(-1.0));
  CHECK(std::get<nir::LIF>(node(back, "1").kind).tau.at(2) == Approx(tau));
  CHECK(node(back, "2") == node(graph, "2"));
  const at::Tensor x = inputs({20, 4}, c10::kFloat) * 3;
  CHECK(at::equal(nir::to_module(back, {.dt = dt})->forward(x), script.forward({x}).toTensor()));
}

TEST_CASE("a script that is no graph's is refused") {
  torch::jit::Module script = nir::to_torchscript(network(), {.dt = dt});
  script._ivalue()->setAttr("nir/graph", c10::IValue());
  CHECK_THROWS_WITH(nir::from_torchscript(script), has_text("it holds no NIR graph"));
}
