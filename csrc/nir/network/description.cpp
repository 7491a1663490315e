#include "csrc/nir/network/description.h"
#include "csrc/nir/network/cell.h"
#include "csrc/nir/network/node_modules.h"
#include "csrc/nir/network/restore.h"
#include "csrc/nir/network/tensor.h"
#include "csrc/nir/network/values.h"
#include "csrc/nir/refuse.h"
#include "csrc/nn/delay.h"
#include "csrc/nn/neurons.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/ops/full.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <functional>
#include <map>

namespace spikeforge::nir {
namespace {

using Integers = std::vector<std::int64_t>;

constexpr std::string_view notes_prefix = "notes/", params_prefix = "params/", labels_prefix = "labels/";

// Returns {"metadata": of the graph, "nodes": {part or port: {"name": text, "metadata": of the node}}}.
Group group_of_labels(const GraphNetworkImpl& network) {
  Group nodes, labels;
  for (const auto& [part, label] : network.labels) {
    Group& node = std::get<Group>(nodes.members.emplace_back(Member{part, Group{}}).value);
    node.members.push_back({"name", Strings::one(label.name)});
    if (!label.metadata.empty()) node.members.push_back({"metadata", label.metadata});
  }
  if (!network.metadata.empty()) labels.members.push_back({"metadata", network.metadata});
  if (!nodes.empty()) labels.members.push_back({"nodes", std::move(nodes)});
  return labels;
}

void take_labels(GraphNetworkImpl& network, const Group& labels) {
  const auto group = [](const Group& of, std::string_view name) {
    const Member* const member = of.find(name);
    return member ? std::get<Group>(member->value) : Group{};
  };
  network.metadata = group(labels, "metadata");
  for (const Member& node : group(labels, "nodes").members) {
    const Group& label = std::get<Group>(node.value);
    const Member* const name = label.find("name");
    const auto* const strings = name ? std::get_if<Strings>(&name->value) : nullptr;
    if (!strings || strings->values.size() != 1) throw Error(node.name, "name", "expected one string");
    network.labels[node.name] = {strings->values[0], group(label, "metadata")};
  }
}

template <class... Arguments>
[[noreturn]] void refuse_part(std::string path, fmt::format_string<Arguments...> reason, Arguments&&... arguments) {
  std::replace(path.begin(), path.end(), '.', '/');
  refuse(path.empty() ? "/" : path, "", reason, std::forward<Arguments>(arguments)...);
}

template <class Array> Integers integers(const Array& values) { return {values.begin(), values.end()}; }

// --- From modules

class DescriptionWriter {
 public:
  c10::impl::GenericList rows() const { return rows_; }

  void part(const nn::Part& part, const std::string& path) { module(*part.module(), path); }

 private:
  class Row {
   public:
    Row(const std::string& path, const char* kind) { set("path", path), set("kind", kind); }
    template <class T> Row& set(const char* name, const T& value) {
      if constexpr (std::is_same_v<T, at::Tensor>) {
        if (!value.defined()) return *this;
      }
      values.insert(name, c10::IValue(value));
      return *this;
    }
    void set_all(std::string_view prefix, const Group& group) {
      for (const auto& value : values_of(group))
        values.insert(std::string(prefix) + value.key().toStringRef(), value.value());
    }
    c10::impl::GenericDict values = empty_dict();
  };

  void add(const Row& row) { rows_.push_back(row.values); }
  static std::string below(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  void module(const torch::nn::Module& module, const std::string& path) {
    if (const auto* m = dynamic_cast<const nn::CompositeImpl*>(&module)) return network(*m, path);
    if (dynamic_cast<const nn::NeuronModule*>(&module)) return neuron(module, path);
    if (const auto* m = dynamic_cast<const nn::TimeDistributedImpl*>(&module)) {
      add(Row(path, "TimeDistributed"));
      return this->module(*m->children()[0], below(path, "module"));
    }
    if (const auto* m = dynamic_cast<const torch::nn::SequentialImpl*>(&module)) {
      add(Row(path, "Sequential"));
      for (const auto& child : m->named_children()) this->module(*child.value(), below(path, child.key()));
      return;
    }
    layer(module, path);
  }

  void network(const nn::CompositeImpl& network, const std::string& path) {
    std::vector<std::string> sources, targets;
    Integers delays, from_rest;
    c10::List<Integers> shapes;
    for (const auto& [from, to, connection] : network.wires()) {
      sources.push_back(from);
      targets.push_back(to);
      delays.push_back(connection.delay);
      from_rest.push_back(connection.from_rest);
      shapes.push_back(connection.shape);
    }
    Row row(path, "Composite");
    row.set("sources", sources).set("targets", targets).set("delays", delays);
    row.set("from_rest", from_rest).set("shapes", shapes);
    if (const auto* graph = dynamic_cast<const GraphNetworkImpl*>(&network))
      row.set_all(labels_prefix, group_of_labels(*graph));
    add(row);
    for (const auto& [name, part] : network.parts()) this->part(part, below(path, name));
  }

  void neuron(const torch::nn::Module& module, const std::string& path) {
    const auto notes = notes_of_neuron(module);
    const auto* const own = dynamic_cast<const nn::NeuronImpl*>(&module);
    const auto* const node = dynamic_cast<const NodeNeuronImpl*>(&module);
    if (!notes && !own) refuse_part(path, "there is no description of {}", module.name());
    std::string kind = "Node";
    if (!node && notes) kind = std::get<Strings>(notes->find("module")->value).values[0];
    Row row(path, kind.c_str());
    if (own && (node || !notes)) {
      row.set("text", own->options().neuron().text());
      if (node) row.set("type", node->type()).set("dt", node->cell_options().dt);
      constants(*own, row);
    }
    if (notes) row.set_all(notes_prefix, *notes);
    add(row);
  }

  static void constants(const nn::NeuronImpl& neuron, Row& row) {
    std::vector<std::string> learned;
    const auto parameters = neuron.named_parameters(/*recurse=*/false),
               buffers = neuron.named_buffers(/*recurse=*/false);
    for (const auto& [name, constant] : neuron.options().params()) {
      const at::Tensor* const parameter = parameters.find(name);
      const at::Tensor* const buffer = buffers.find(name);
      if (parameter) learned.push_back(name);
      const std::string key = std::string(params_prefix) + name;
      if (parameter || buffer)
        row.set(key.c_str(), parameter ? *parameter : *buffer);
      else
        row.set(key.c_str(), constant.value.number());
    }
    if (!learned.empty()) row.set("learned", learned);
  }

  void layer(const torch::nn::Module& module, const std::string& path) {
    if (const auto* m = dynamic_cast<const torch::nn::LinearImpl*>(&module))
      return add(Row(path, "Linear").set("weight", m->weight).set("bias", m->bias));
    if (const auto* m = dynamic_cast<const StackedLinearImpl*>(&module))
      return add(Row(path, "StackedLinear").set("weight", m->weight).set("bias", m->bias));
    if (const auto* m = dynamic_cast<const torch::nn::Conv1dImpl*>(&module)) return convolution<1>(*m, path, "Conv1d");
    if (const auto* m = dynamic_cast<const torch::nn::Conv2dImpl*>(&module)) return convolution<2>(*m, path, "Conv2d");
    if (const auto* m = dynamic_cast<const torch::nn::ConstantPad1dImpl*>(&module))
      return add(Row(path, "ConstantPad1d").set("padding", integers(*m->options.padding())));
    if (const auto* m = dynamic_cast<const torch::nn::ConstantPad2dImpl*>(&module))
      return add(Row(path, "ConstantPad2d").set("padding", integers(*m->options.padding())));
    if (const auto* m = dynamic_cast<const torch::nn::AvgPool2dImpl*>(&module)) {
      Row row(path, "AvgPool2d");
      row.set("kernel_size", integers(*m->options.kernel_size())).set("stride", integers(*m->options.stride()));
      row.set("padding", integers(*m->options.padding()));
      if (m->options.divisor_override()) row.set("divisor_override", *m->options.divisor_override());
      return add(row);
    }
    if (const auto* m = dynamic_cast<const WindowPoolImpl*>(&module))
      return add(Row(path, "WindowPool")
                     .set("kernel_size", m->window.kernel_size)
                     .set("stride", m->window.stride)
                     .set("padding", m->window.padding)
                     .set("sums", m->window.sums));
    if (const auto* m = dynamic_cast<const torch::nn::FlattenImpl*>(&module))
      return add(Row(path, "Flatten").set("start_dim", m->options.start_dim()).set("end_dim", m->options.end_dim()));
    if (const auto* m = dynamic_cast<const nn::DelayImpl*>(&module))
      return add(Row(path, "Delay").set("steps", m->steps()));
    if (const auto* m = dynamic_cast<const SilenceImpl*>(&module))
      return add(Row(path, "Silence").set("input_rank", m->input_rank()).set("shape", m->shape()));
    refuse_part(path, "there is no description of {}", module.name());
  }

  template <int D, class Convolution>
  void convolution(const Convolution& m, const std::string& path, const char* kind) {
    const auto& o = m.options;
    Row row(path, kind);
    row.set("weight", m.weight).set("bias", m.bias).set("groups", o.groups());
    row.set("stride", integers(*o.stride())).set("dilation", integers(*o.dilation()));
    if (const auto* numbers = std::get_if<torch::ExpandingArray<D>>(&o.padding()))
      row.set("padding", integers(**numbers));
    add(row);
  }

  c10::impl::GenericList rows_{c10::DictType::create(c10::StringType::get(), c10::AnyType::get())};
};

// --- To modules

class ModuleRow {
 public:
  explicit ModuleRow(const c10::IValue& values) : values_(values.toGenericDict()) {}

  const c10::IValue* find(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return nullptr;
    found_ = found->value();
    return &found_;
  }
  bool has(const std::string& name) const { return values_.contains(name); }
  const c10::IValue& at(const std::string& name) const {
    const c10::IValue* const value = find(name);
    if (!value) refuse_part(path(), "its description lacks {}", name);
    return *value;
  }
  std::string path() const { return values_.at("path").toStringRef(); }
  std::string text(const std::string& name) const { return at(name).toStringRef(); }
  std::int64_t integer(const std::string& name, std::int64_t otherwise) const {
    const c10::IValue* const value = find(name);
    return value ? value->toInt() : otherwise;
  }
  bool flag(const std::string& name) const {
    const c10::IValue* const value = find(name);
    return value && value->toBool();
  }
  // Returns an empty list if the entry does not exist.
  Integers integers(const std::string& name) const { return has(name) ? at(name).toIntVector() : Integers(); }
  std::vector<std::string> texts(const std::string& name) const {
    std::vector<std::string> texts;
    if (has(name))
      for (const c10::IValue& text : at(name).toListRef()) texts.push_back(text.toStringRef());
    return texts;
  }
  at::Tensor tensor(const std::string& name) const { return has(name) ? at(name).toTensor().detach() : at::Tensor(); }

  // Returns the entries with this prefix, with the prefix removed.
  c10::impl::GenericDict under(std::string_view prefix) const {
    c10::impl::GenericDict found = empty_dict();
    for (const auto& entry : values_)
      if (const std::string& name = entry.key().toStringRef(); name.starts_with(prefix))
        found.insert(name.substr(prefix.size()), entry.value());
    return found;
  }

 private:
  c10::impl::GenericDict values_;
  mutable c10::IValue found_;
};

class ModuleMaker {
 public:
  explicit ModuleMaker(const c10::impl::GenericList& rows) {
    for (const c10::IValue& values : rows) rows_.emplace_back(values);
  }

  nn::Part whole() {
    if (rows_.empty()) throw Error("", "", "the description is empty");
    return part(rows_[next_++]);
  }

 private:
  nn::Part part(const ModuleRow& row) {
    try {
      return made(row);
    } catch (const c10::Error& error) {
      refuse_part(row.path(), "{}", error.what_without_backtrace());
    }
  }

  nn::Part made(const ModuleRow& row) {
    const std::string kind = row.text("kind");
    if (kind == "Composite") return network(row);
    if (kind == "Sequential") return padded_convolution(row);
    if (kind == "Node") return node(row);
    if (kind == "Linear") return linear_of(row.tensor("weight"), row.tensor("bias"));
    if (kind == "StackedLinear") return StackedLinear(row.tensor("weight"), row.tensor("bias"));
    if (kind == "Conv1d") return convolution<1, torch::nn::Conv1d>(row);
    if (kind == "Conv2d") return convolution<2, torch::nn::Conv2d>(row);
    if (kind == "AvgPool2d") return pool(row);
    if (kind == "WindowPool")
      return WindowPool(WindowPoolImpl::Window{row.integers("kernel_size"), row.integers("stride"),
                                               row.integers("padding"), row.flag("sums")});
    if (kind == "Flatten")
      return torch::nn::Flatten(
          torch::nn::FlattenOptions().start_dim(row.integer("start_dim", 1)).end_dim(row.integer("end_dim", -1)));
    if (kind == "Identity") return torch::nn::Identity();
    if (kind == "Delay") return nn::Delay(row.tensor("steps"));
    if (kind == "Silence") return Silence(row.integer("input_rank", 0), row.integers("shape"));
    return neuron(row);
  }

  // Calls the function for each following row whose path is within that of the row.
  template <class Function> void for_each_child(const ModuleRow& row, Function&& function) {
    const std::string prefix = row.path().empty() ? "" : row.path() + ".";
    while (next_ < rows_.size() && rows_[next_].path().starts_with(prefix)) {
      const ModuleRow& child = rows_[next_++];
      function(child.path().substr(prefix.size()), child);
    }
  }

  nn::Part network(const ModuleRow& row) {
    GraphNetwork network;
    take_labels(*network, group_of_values(row.under(labels_prefix)));
    for_each_child(row, [&](const std::string& name, const ModuleRow& child) { network->add(name, part(child)); });
    const auto sources = row.texts("sources"), targets = row.texts("targets");
    const Integers delays = row.integers("delays"), from_rest = row.integers("from_rest");
    if (targets.size() != sources.size() || delays.size() != sources.size() || from_rest.size() != sources.size())
      refuse_part(row.path(), "its connections are not described alike");
    for (std::size_t i = 0; i < sources.size(); ++i)
      network->connect(sources[i], targets[i], {.delay = delays[i], .repeated = true, .from_rest = from_rest[i] != 0});
    return network;
  }

  template <int D, class Convolution> static Convolution convolution(const ModuleRow& row) {
    const std::int64_t groups = row.integer("groups", 1);
    torch::nn::ConvOptions<D> options(groups, groups, 1);
    options.stride(expanded<D>(row.integers("stride"))).dilation(expanded<D>(row.integers("dilation"))).groups(groups);
    const c10::IValue& padding = row.at("padding");
    if (!padding.isString())
      options.padding(expanded<D>(padding.toIntVector()));
    else if (padding.toStringRef() == "same")
      options.padding(torch::kSame);
    else
      options.padding(torch::kValid);
    return convolution_of<Convolution>(row.tensor("weight"), row.tensor("bias"), options);
  }

  nn::Part padded_convolution(const ModuleRow& row) {
    std::vector<const ModuleRow*> children;
    for_each_child(row, [&](const std::string&, const ModuleRow& child) { children.push_back(&child); });
    if (children.size() == 2) {
      const Integers padding = children[0]->integers("padding");
      if (children[0]->text("kind") == "ConstantPad1d" && children[1]->text("kind") == "Conv1d")
        return torch::nn::Sequential(torch::nn::ConstantPad1d(torch::nn::ConstantPad1dOptions(expanded<2>(padding), 0)),
                                     convolution<1, torch::nn::Conv1d>(*children[1]));
      if (children[0]->text("kind") == "ConstantPad2d" && children[1]->text("kind") == "Conv2d")
        return torch::nn::Sequential(torch::nn::ConstantPad2d(torch::nn::ConstantPad2dOptions(expanded<4>(padding), 0)),
                                     convolution<2, torch::nn::Conv2d>(*children[1]));
    }
    refuse_part(row.path(), "a Sequential is a zero padding and a convolution here");
  }

  static nn::Part pool(const ModuleRow& row) {
    torch::nn::AvgPool2dOptions options(expanded<2>(row.integers("kernel_size")));
    options.stride(expanded<2>(row.integers("stride"))).padding(expanded<2>(row.integers("padding")));
    options.ceil_mode(row.flag("ceil_mode"))
        .count_include_pad(!row.has("count_include_pad") || row.flag("count_include_pad"));
    if (row.has("divisor_override")) options.divisor_override(row.at("divisor_override").toInt());
    return torch::nn::AvgPool2d(options);
  }

  static Group metadata(const ModuleRow& row) {
    c10::impl::GenericDict values = empty_dict();
    for (const auto& note : row.under(notes_prefix))
      values.insert("spikeforge/" + note.key().toStringRef(), note.value());
    return group_of_values(values);
  }

  static nn::Part neuron(const ModuleRow& row) {
    const Node node{Input{}, metadata(row)};
    if (auto part = neuron_of_metadata(node, {.dt = 1, .dtype = c10::kDouble})) return *part;
    refuse_part(row.path(), "NIR has no node for {}", row.text("kind"));
  }

  // Returns the module of an elementwise node. Its text is generated again, because Python cannot write neuron text.
  static nn::Part node(const ModuleRow& row) {
    std::map<std::string, at::Tensor, std::less<>> params;
    for (const auto& param : row.under(params_prefix)) {
      const c10::IValue& value = param.value();
      params[param.key().toStringRef()] =
          value.isTensor() ? value.toTensor().detach() : at::full({}, value.toDouble(), c10::kDouble);
    }
    const std::string type = row.text("type");
    Node node{kind_named(type), metadata(row)};
    set_arrays(node.kind, [&](std::string_view name) {
      const auto found = params.find(name);
      return found == params.end() ? std::nullopt : std::optional(exact_array(found->second));
    });
    const CellOptions options = decide(node, {.dt = row.at("dt").toDouble()});
    const auto cell = cell_of(node.kind, options);
    if (!cell) refuse_part(row.path(), "{} is not a neuron of NIR", type);
    nn::NeuronOptions neuron(cell->text);
    for (const auto& [name, array] : cell->params) {
      const auto found = params.find(name);
      if (found == params.end()) refuse_part(row.path(), "its description lacks {}", name);
      neuron.param(std::string(name), nn::Constant(found->second));
    }
    return NodeNeuron(type, options, std::move(neuron));
  }

  std::vector<ModuleRow> rows_;
  std::size_t next_ = 0;
};

}  // namespace

c10::impl::GenericList description_of(const nn::Part& network) {
  DescriptionWriter writer;
  writer.part(network, "");
  return writer.rows();
}

nn::Part part_of_description(const c10::impl::GenericList& rows) { return ModuleMaker(rows).whole(); }

}  // namespace spikeforge::nir
