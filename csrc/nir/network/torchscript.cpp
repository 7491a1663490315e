#include "csrc/nir/network/torchscript.h"
#include "csrc/nir/error.h"
#include "csrc/nir/network/graph_table.h"
#include "csrc/nir/network/restore.h"
#include "csrc/nir/network/script_file.h"
#include "csrc/nir/network/to_module.h"
#include "csrc/nir/validate.h"
#include "csrc/torchscript/torchscript.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace spikeforge::nir {
namespace {

// Names that no node can have.
constexpr const char* table_attribute = "nir/graph";
constexpr const char* dt_attribute = "nir/dt";

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Some steps of noise for every input: the script must give the network's bits on them.
nn::Tensors noise_for(const Graph& graph, const nn::Names& inputs, const ModuleOptions& options) {
  constexpr std::int64_t steps = 3;
  const std::vector<NodeShapes> shapes = infer_shapes(graph, options.shapes);
  const std::vector<std::string> names = module_names(graph);
  nn::Tensors all;
  for (const std::string& input : inputs) {
    std::size_t i = 0;
    while (i < names.size() && names[i] != input && "input_" + names[i] != input) ++i;
    if (i == names.size() || !shapes[i].in) throw Error(input, "", "its shape cannot be told");
    std::vector<std::int64_t> shape = *shapes[i].in;
    if (options.fold_time) shape.insert(shape.begin(), 1);  // TimeDistributed takes batches only
    shape.insert(shape.begin(), steps);
    const at::Tensor noise = at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(1), c10::kFloat);
    all.push_back(noise.to(options.device, options.dtype));
  }
  return all;
}

// --- Back

using ObjectPtr = c10::intrusive_ptr<c10::ivalue::Object>;

c10::IValue attribute_of(const ObjectPtr& object, const std::string& name) {
  const auto slot = object->type()->findAttributeSlot(name);
  return slot ? object->getSlot(*slot) : c10::IValue();
}

// "inner.lif.tau"; undefined where there is none.
at::Tensor tensor_at(const ObjectPtr& object, const std::string& name) {
  const std::size_t dot = name.find('.');
  const c10::IValue value = attribute_of(object, name.substr(0, dot));
  if (dot == std::string::npos) return value.isTensor() ? value.toTensor() : at::Tensor();
  return value.isObject() ? tensor_at(value.toObject(), name.substr(dot + 1)) : at::Tensor();
}

// Fields that follow from metadata which have been trained.
void renew_fields(Graph& graph, const std::set<std::string>& noted, const std::string& path, const std::string& name,
                  double dt) {
  for (NamedNode& node : graph.nodes) {
    const std::string inner = path + "/nodes/" + node.name, shown = in_node(name, node.name);
    if (Graph* nested = std::get_if<Graph>(&node.node.kind)) {
      renew_fields(*nested, noted, inner, shown, dt);
      continue;
    }
    if (!noted.contains(inner)) continue;
    Shape shape;
    for_each_array(node.node.kind, [&](std::string_view, const Array& array) { shape = array.shape(); });
    try {
      if (auto renewed = node_of_metadata(node.node, shape, dt)) node.node.kind = std::move(renewed->kind);
    } catch (const c10::Error& error) {
      throw Error(shown, "", one_line(error.what_without_backtrace()));
    }
  }
}

Graph graph_in(const ObjectPtr& module, const Limits& limits) {
  const c10::IValue table = attribute_of(module, table_attribute), dt = attribute_of(module, dt_attribute);
  if (table.isNone() || !dt.isDouble())
    throw Error("", "", "it holds no NIR graph: it was not converted from one, or has been frozen since");
  const TableContents contents = read_graph_table(
      table, [&](const std::string& name) { return tensor_at(module, name); }, limits);
  Report report;
  Graph graph = graph_of(contents.file, limits, report);
  if (contents.noted.empty()) return graph;
  if (!(dt.toDouble() > 0) || !std::isfinite(dt.toDouble())) throw Error("", "", "the time step in it is damaged");
  renew_fields(graph, contents.noted, "node", "", dt.toDouble());
  validate(graph, limits);
  return graph;
}

}  // namespace

torch::jit::Module to_torchscript(const Graph& graph, const ModuleOptions& options) {
  nn::Composite network = to_module(graph, options);
  if (network->input_names().empty()) throw Error("/", "", "there is no Input");
  if (network->output_names().empty()) throw Error("/", "", "there is no Output");
  try {
    network->eval();
    torch::jit::Module script = spikeforge::to_torchscript(*network, noise_for(graph, network->input_names(), options));
    script.register_attribute(table_attribute, graph_table_type(), graph_table(graph, *network));
    script.register_attribute(dt_attribute, c10::FloatType::get(), options.dt);
    return script;
  } catch (const c10::Error& error) {
    throw Error("", "", one_line(error.what_without_backtrace()));
  }
}

Graph from_torchscript(const torch::jit::Module& module, const Limits& limits) {
  return graph_in(module._ivalue(), limits);
}

Graph from_torchscript(const std::string& file, const Limits& limits) {
  try {
    return graph_in(read_script_file(file, limits), limits);
  } catch (const Error& error) {
    throw error.in_file(file);
  } catch (const std::bad_alloc&) {
    throw Error(file, "", "", "there is not enough memory to read it");
  } catch (const c10::Error& error) {
    throw Error(file, "", "", one_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw Error(file, "", "", one_line(error.what()));
  }
}

}  // namespace spikeforge::nir
