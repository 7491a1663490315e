// convert FILE.nir OUT.pt
#include "network_options.h"

#include <spikeforge/nir/error.h>
#include <spikeforge/nir/replacement_file.h>
#include <spikeforge/torchscript/torchscript.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <memory>

namespace spikeforge::nir {
namespace {

struct TorchScriptOptions : NetworkOptions {
  std::string to;

  [[noreturn]] void refuse_network(const std::string& node, std::string reason) const {
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    throw Error(file, node, "", reason);
  }
};

// Some steps of noise for every input: the script must give the network's bits on them.
nn::Tensors example(const TorchScriptOptions& options, const Graph& graph, const nn::Names& inputs) {
  constexpr std::int64_t steps = 3;
  const std::vector<NodeShapes> shapes = infer_shapes(graph, options.shapes);
  const std::vector<std::string> names = module_names(graph);
  nn::Tensors all;
  for (const std::string& input : inputs) {
    std::size_t i = 0;
    while (i < names.size() && names[i] != input && "input_" + names[i] != input) ++i;
    if (i == names.size() || !shapes[i].in) options.refuse_network(input, "its shape cannot be told");
    std::vector<std::int64_t> shape = *shapes[i].in;
    shape.insert(shape.begin(), steps);
    all.push_back(at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(1), options.module.dtype));
  }
  return all;
}

int write_torchscript(const TorchScriptOptions& options) {
  if (options.file.ends_with(".pt"))
    throw Error(options.file, "", "", "TorchScript cannot be converted, only NIR files");
  if (!options.to.ends_with(".pt")) throw Error(options.to, "", "", "expected a file that ends in .pt");
  const Graph graph = options.read_graph();
  nn::Composite network = options.network(graph);
  if (network->input_names().empty()) options.refuse_network("/", "there is no Input");
  if (network->output_names().empty()) options.refuse_network("/", "there is no Output");
  std::optional<torch::jit::Module> script;
  try {
    network->eval();
    script = to_torchscript(*network, example(options, graph, network->input_names()));
  } catch (const c10::Error& error) {
    options.refuse_network("", error.what_without_backtrace());
  }
  try {
    ReplacementFile file(options.to);
    script->save(file.path());
    file.replace();
  } catch (const c10::Error&) {
    throw Error(options.to, "", "", "cannot be written");
  } catch (const std::exception& error) {
    throw Error(options.to, "", "", error.what());
  }
  return 0;
}

}  // namespace

Command add_to_torchscript(CLI::App& program) {
  const auto options = std::make_shared<TorchScriptOptions>();
  CLI::App* const app = program.add_subcommand(
      "convert", "Write a network as TorchScript, which runs where the operator library is loaded, in C++ and Python");
  app->add_option("file", options->file, "A NIR file of any version")->required();
  app->add_option("to", options->to, "The .pt file to write; an old one is replaced when the new one is whole")
      ->required();
  add_network_options(*app, *options);
  return {app, [options] { return write_torchscript(*options); }};
}

}  // namespace spikeforge::nir
