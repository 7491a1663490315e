#include "csrc/nir/network/torchscript.h"
#include "csrc/nir/error.h"
#include "csrc/nir/network/to_module.h"
#include "csrc/nir/validate.h"
#include "csrc/torchscript/torchscript.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>

namespace spikeforge::nir {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Returns noise for every input, for a few steps. The script and the network must have the same bits for it.
nn::Tensors noise_for(const Graph& graph, const nn::Names& inputs, const ModuleOptions& options) {
  constexpr std::int64_t steps = 3;
  const std::vector<NodeShapes> shapes = infer_shapes(graph, options.shapes);
  const std::vector<std::string> names = module_names(graph);
  nn::Tensors all;
  for (const std::string& input : inputs) {
    std::size_t i = 0;
    while (i < names.size() && names[i] != input && "input_" + names[i] != input) ++i;
    if (i == names.size() || !shapes[i].in) throw Error(input, "", "its shape cannot be inferred");
    std::vector<std::int64_t> shape = *shapes[i].in;
    if (options.fold_time) shape.insert(shape.begin(), 1);  // TimeDistributed requires a batch
    shape.insert(shape.begin(), steps);
    const at::Tensor noise = at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(1), c10::kFloat);
    all.push_back(noise.to(options.device, options.dtype));
  }
  return all;
}

}  // namespace

torch::jit::Module to_torchscript(const Graph& graph, const ModuleOptions& options) {
  nn::Composite network = to_module(graph, options);
  if (network->input_names().empty()) throw Error("/", "", "there is no Input");
  if (network->output_names().empty()) throw Error("/", "", "there is no Output");
  try {
    network->eval();
    return spikeforge::to_torchscript(*network, noise_for(graph, network->input_names(), options));
  } catch (const c10::Error& error) {
    throw Error("", "", one_line(error.what_without_backtrace()));
  }
}

}  // namespace spikeforge::nir
