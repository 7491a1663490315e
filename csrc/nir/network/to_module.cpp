#include "csrc/nir/network/to_module.h"
#include "csrc/nir/network/back_edges.h"
#include "csrc/nir/network/node_modules.h"
#include "csrc/nir/network/restore.h"
#include "csrc/nir/network/tensor.h"
#include "csrc/nir/refuse.h"
#include "csrc/nir/validate.h"
#include "csrc/nn/delay.h"
#include "csrc/nn/time_distributed.h"

#include <ATen/ops/empty.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace spikeforge::nir {
namespace {

class Builder {
 public:
  // `takes`: the graph's arrays are moved into the modules.
  Builder(const Graph& graph, std::string name, const ModuleOptions& options, bool takes,
          const std::optional<Shape>& arriving = {})
      : graph_(graph),
        name_(std::move(name)),
        options_(options),
        takes_(takes),
        names_(module_names(graph, options.reserved_names)),
        shapes_(infer_shapes(graph, options.shapes, nullptr, arriving)),
        order_(step_order(graph)) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) index_.emplace(graph.nodes[i].name, i);
    nodes_.resize(graph.nodes.size());
    for (std::size_t e = 0; e < graph.edges.size(); ++e) {
      nodes_[index_.at(graph.edges[e].from)].leads_on = true;
      NodeEdges& to = nodes_[index_.at(graph.edges[e].to)];
      (order_.is_back_edge[e] ? to.has_back_edge : to.has_forward_edge) = true;
    }
    taken_.insert(names_.begin(), names_.end());
  }

  nn::Composite build() {
    for (std::size_t i = 0; i < graph_.nodes.size() && !input_; ++i)
      if (as<Input>(i)) input_ = i;
    for (const std::size_t i : order_.nodes) add(i);
    lay_delays();
    for (std::size_t e = 0; e < graph_.edges.size(); ++e) connect(e);
    add_ports();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) label(i);
    network_->metadata = graph_.metadata;
    return nn::Composite(std::shared_ptr<nn::CompositeImpl>(network_.ptr()));
  }

 private:
  template <class N> const N* as(std::size_t i) const { return std::get_if<N>(&graph_.nodes[i].node.kind); }
  bool is_port(std::size_t i) const { return as<Input>(i) || as<Output>(i); }
  std::string name_of(std::size_t i) const { return in_node(name_, graph_.nodes[i].name); }
  const Shape& shape_into(std::size_t i) const {
    if (!shapes_[i].in) refuse(name_of(i), "", "its shape cannot be inferred");
    return *shapes_[i].in;
  }

  // Adds a label for a node that has metadata, or another name than the default: that of its part, or "input" and
  // "output" for ports.
  void label(std::size_t i) {
    const NamedNode& named = graph_.nodes[i];
    Group metadata = without_notes(named.node.metadata);
    const std::string_view usual = as<Input>(i) ? input_name : as<Output>(i) ? output_name : names_[i];
    if (named.name != usual || !metadata.empty())
      network_->labels.emplace(names_[i], Label{named.name, std::move(metadata)});
  }

  // --- Nodes

  void add(std::size_t i) {
    if (is_port(i)) return;
    try {
      network_->add(names_[i], part(i));
    } catch (const c10::Error& error) {
      refuse(name_of(i), "", "{}", error.what_without_backtrace());
    }
  }

  nn::Part part(std::size_t i) {
    const Node& node = graph_.nodes[i].node;
    if (const Graph* inner = std::get_if<Graph>(&node.kind)) {
      nn::Composite network = Builder(*inner, name_of(i), options_, takes_, shapes_[i].in).build();
      const nn::Names inputs = network->input_names(), outputs = network->output_names();
      network_parts_[i] = {inputs.empty() ? "" : inputs[0], outputs.empty() ? "" : outputs[0]};
      return network;
    }
    if (auto restored = restore(node, shape_into(i), options_)) return *restored;
    const CellOptions cell_options = decide(node, options_);
    if (const auto cell = cell_of(node.kind, cell_options)) return neuron(node, *cell, cell_options);
    return std::visit([&](const auto& n) { return layer(n, i); }, node.kind);
  }

  nn::Part neuron(const Node& node, const Cell& cell, const CellOptions& cell_options) const {
    nn::NeuronOptions neuron(cell.text);
    const bool is_weight = std::holds_alternative<Scale>(node.kind);
    for (const auto& [name, array] : cell.params) {
      const at::Tensor value =
          shared_tensor(array).to(options_.device, is_weight ? options_.dtype : nn::state_type(options_.dtype));
      const bool learn = is_weight || options_.learn_neurons;
      neuron.param(std::string(name), learn ? nn::Constant(nn::Learnable(value)) : nn::Constant(value));
    }
    return NodeNeuron(std::string(node.type()), cell_options, std::move(neuron));
  }

  at::Tensor weight(const Array& array) const {
    return (takes_ ? taken_tensor : tensor_of)(array, options_.dtype, options_.device);
  }
  // Returns the bias of a layer. A single number applies to all outputs, as in other readers of NIR.
  at::Tensor bias(const Array& array, const Shape& shape) const {
    return array.shape() == shape ? weight(array) : weight(array).reshape({}).expand(shape).clone();
  }

  template <class Module> nn::Part once_a_step(Module module) const {
    if (options_.fold_time) return nn::TimeDistributed(nn::Part(std::move(module)));
    return nn::Part(std::move(module));
  }

  nn::Part layer(const Linear& n, std::size_t) const { return matrix(n.weight, {}); }
  nn::Part layer(const Affine& n, std::size_t) const {
    return matrix(n.weight, bias(n.bias, {n.weight.shape().begin(), n.weight.shape().end() - 1}));
  }
  nn::Part matrix(const Array& array, const at::Tensor& bias) const {
    const Shape& shape = array.shape();
    if (shape.size() > 2) return once_a_step(StackedLinear(weight(array), bias));
    return once_a_step(linear_of(weight(array), bias));
  }

  template <int D> nn::Part layer(const Conv<D>& n, std::size_t) const {
    using Convolution = std::conditional_t<D == 1, torch::nn::Conv1d, torch::nn::Conv2d>;
    using Pad = std::conditional_t<D == 1, torch::nn::ConstantPad1d, torch::nn::ConstantPad2d>;
    using PadOptions = std::conditional_t<D == 1, torch::nn::ConstantPad1dOptions, torch::nn::ConstantPad2dOptions>;
    torch::nn::ConvOptions<D> options(n.groups, n.groups, 1);
    options.stride(expanded<D>(n.stride)).dilation(expanded<D>(n.dilation)).groups(n.groups);
    if (n.padding.mode == PaddingMode::numbers) options.padding(expanded<D>(n.padding.numbers));
    auto convolution = convolution_of<Convolution>(weight(n.weight), bias(n.bias, {n.weight.shape()[0]}), options);
    if (n.padding.mode != PaddingMode::same) return once_a_step(std::move(convolution));
    return once_a_step(torch::nn::Sequential(Pad(PadOptions(expanded<2 * D>(same_padding(n)), 0)), convolution));
  }

  nn::Part layer(const SumPool2d& n, std::size_t i) const { return pool(n, i, true); }
  nn::Part layer(const AvgPool2d& n, std::size_t i) const { return pool(n, i, false); }
  template <class N> nn::Part pool(const N& n, std::size_t i, bool sums) const {
    const auto is_wide = [&](int d) { return 2 * n.padding[d] > n.kernel_size[d]; };
    if (shape_into(i).size() != 3 || is_wide(0) || is_wide(1)) {
      const auto numbers = [](const auto& array) { return std::vector<std::int64_t>(array.begin(), array.end()); };
      return once_a_step(
          WindowPool(WindowPoolImpl::Window{numbers(n.kernel_size), numbers(n.stride), numbers(n.padding), sums}));
    }
    torch::nn::AvgPool2dOptions options(expanded<2>(n.kernel_size));
    options.stride(expanded<2>(n.stride)).padding(expanded<2>(n.padding));
    if (sums) options.divisor_override(1);
    return once_a_step(torch::nn::AvgPool2d(options));
  }

  // Dimensions are counted from the end, so that any number of batch dimensions may precede them.
  nn::Part layer(const Flatten& n, std::size_t i) const {
    const auto rank = static_cast<std::int64_t>(shape_into(i).size());
    const auto from_end = [rank](std::int64_t d) { return d < 0 ? d : d - rank; };
    return once_a_step(
        torch::nn::Flatten(torch::nn::FlattenOptions().start_dim(from_end(n.start_dim)).end_dim(from_end(n.end_dim))));
  }

  nn::Part layer(const Delay& n, std::size_t i) const {
    constexpr double most_bytes = double{1ull << 31};  // of values in flight
    at::Tensor steps = at::empty(n.delay.shape(), c10::kLong);
    // The relative precision of a decimal number in the type of the file.
    const double precision = n.delay.dtype() == DType::float16 ? 1e-3 : 1e-6;
    double longest = 0;
    for (std::int64_t k = 0; k < n.delay.count(); ++k) {
      const double delay = n.delay.at(k) / options_.dt, rounded = std::nearbyint(delay);
      if (!(delay < 1e15)) refuse(name_of(i), "delay", "{} s are too many steps", n.delay.at(k));
      if (options_.delays == DelayRounding::exact && std::fabs(delay - rounded) > precision * std::max(1.0, delay))
        refuse(name_of(i), "delay",
               "{} s are {:.6g} steps, but only whole steps can be represented; round them, or take another dt",
               n.delay.at(k), delay);
      steps.mutable_data_ptr<std::int64_t>()[k] = static_cast<std::int64_t>(rounded);
      longest = std::max(longest, rounded);
    }
    const Shape& shape = shape_into(i);
    const double elements = std::accumulate(shape.begin(), shape.end(), 1.0, std::multiplies<>());
    if (longest * elements * static_cast<double>(c10::elementSize(options_.dtype)) > most_bytes)
      refuse(name_of(i), "delay", "{} steps of {} elements need too much memory", longest, elements);
    return nn::Delay(steps);
  }

  template <class N> nn::Part layer(const N& n, std::size_t i) const {
    refuse(name_of(i), "", "{} cannot be represented", N::type);
  }

  // --- Edges

  // Returns the port of a part: "in" or "out", or the name of the Input or Output of a nested graph.
  std::string port(std::size_t i, bool is_source) const {
    if (is_port(i)) return names_[i];
    const Graph* inner = as<Graph>(i);
    if (!inner) return names_[i] + (is_source ? ".out" : ".in");
    const auto& ports = network_parts_.at(i);
    return names_[i] + "." + (is_source ? ports.second : ports.first);
  }

  void connect(std::size_t e) {
    const std::size_t from = index_.at(graph_.edges[e].from), to = index_.at(graph_.edges[e].to);
    nn::Connection connection{.repeated = true};
    if (delays_[e] > 0) {
      connection.delay = delays_[e];
      if (!input_) connection.shape = shape_into(to);
      connection.from_rest = from_rest_[e];
    }
    network_->connect(port(from, true), port(to, false), connection);
  }

  // Adds a delay of one step where the order cuts a cycle. A cut after a layer is moved before it if the metadata mark
  // it as such, as for a Recurrent: then the input of the layer is in flight, initially zeros.
  void lay_delays() {
    const std::size_t n = graph_.nodes.size();
    std::vector<std::vector<std::size_t>> into(n), from(n);
    delays_.resize(graph_.edges.size());
    from_rest_.resize(graph_.edges.size());
    for (std::size_t e = 0; e < graph_.edges.size(); ++e) {
      const std::size_t source = index_.at(graph_.edges[e].from);
      from[source].push_back(e);
      into[index_.at(graph_.edges[e].to)].push_back(e);
      delays_[e] = order_.is_back_edge[e] ? 1 : 0;
      from_rest_[e] = decide_start(graph_.nodes[source].node, options_) == RecurrentStart::apply;
    }
    for (auto i = order_.nodes.rbegin(); i != order_.nodes.rend(); ++i) {
      const Node& node = graph_.nodes[*i].node;
      const auto is_late = [&](std::size_t e) { return delays_[e] > 0; };
      if (!is_layer(node) || into[*i].empty() || from[*i].empty() || !std::ranges::all_of(from[*i], is_late)) continue;
      if (options_.recurrent_start || !from_rest_[from[*i][0]]) continue;
      for (const std::size_t e : from[*i]) --delays_[e];
      for (const std::size_t e : into[*i]) ++delays_[e];
    }
  }

  // Adds ports for nodes without successors, and for those without predecessors.
  void add_ports() {
    const auto holds = [&]<class N>(const N*) {
      return std::any_of(graph_.nodes.begin(), graph_.nodes.end(),
                         [](const NamedNode& n) { return std::holds_alternative<N>(n.node.kind); });
    };
    const bool has_output = holds(static_cast<const Output*>(nullptr));
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (as<Input>(i)) {
        if (nodes_[i].leads_on) continue;
        const std::string sink = free_name(taken_, names_[i] + "_unused");
        network_->add(sink, Silence(static_cast<std::int64_t>(shape_into(i).size()), Shape{}));
        network_->connect(names_[i], sink + ".in");
        continue;
      }
      const NodeEdges& edges = nodes_[i];
      if (!edges.has_forward_edge && !edges.has_back_edge && !(as<Graph>(i) && network_parts_.at(i).first.empty())) {
        if (input_)
          silence(i);
        else
          network_->connect(free_name(taken_, "input_" + names_[i]), port(i, false));
      } else if (input_ && edges.has_back_edge && !edges.has_forward_edge) {
        silence(i);
      }
      if (!has_output && !edges.leads_on && !(as<Graph>(i) && network_parts_.at(i).second.empty()))
        network_->connect(port(i, true), free_name(taken_, "output_" + names_[i]));
    }
  }

  void silence(std::size_t i) {
    const std::string name = free_name(taken_, "silence_" + names_[i]);
    network_->add(name, Silence(static_cast<std::int64_t>(shape_into(*input_).size()), shape_into(i)));
    network_->connect(names_[*input_], name + ".in");
    network_->connect(name + ".out", port(i, false));
  }

  const Graph& graph_;
  std::string name_;
  const ModuleOptions& options_;
  bool takes_;
  std::vector<std::string> names_;
  std::vector<NodeShapes> shapes_;
  StepOrder order_;
  std::vector<std::int64_t> delays_;  // one per edge
  std::vector<bool> from_rest_;
  std::optional<std::size_t> input_;  // the first Input
  std::unordered_map<std::string_view, std::size_t> index_;
  struct NodeEdges {
    bool leads_on = false, has_forward_edge = false, has_back_edge = false;
  };
  std::vector<NodeEdges> nodes_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::size_t, std::pair<std::string, std::string>> network_parts_;  // ports of nested graphs
  GraphNetwork network_;
};

void check(const ModuleOptions& options) {
  if (!(options.dt > 0) || !std::isfinite(options.dt))
    refuse("", "", "dt must be given, in seconds, finite and > 0, but is {}", options.dt);
  if (!c10::isFloatingType(options.dtype) || c10::elementSize(options.dtype) < 2)
    refuse("", "", "the module's type must be float16, bfloat16, float32 or float64, but is {}",
           c10::toString(options.dtype));
}

nn::Composite made_of(const Graph& graph, const ModuleOptions& options, bool takes) {
  check(options);
  validate(graph);
  if (const auto reason = why_not_runnable(graph)) throw *reason;
  try {
    return Builder(graph, "", options, takes).build();
  } catch (const c10::Error& error) {
    std::string what = error.what_without_backtrace();
    std::replace(what.begin(), what.end(), '\n', ' ');
    throw Error("", "", what);
  }
}

}  // namespace

std::vector<std::string> module_names(const Graph& graph, const std::unordered_set<std::string>& reserved) {
  std::vector<std::string> names;
  std::unordered_set<std::string> taken = reserved;
  for (const NamedNode& node : graph.nodes) taken.insert(node.name);
  for (const NamedNode& node : graph.nodes) {
    std::string name = node.name;
    std::ranges::replace(name, '.', '_');
    if (reserved.contains(name)) name += "_";
    if (name != node.name) name = free_name(taken, name);
    names.push_back(std::move(name));
  }
  return names;
}

nn::Composite to_module(const Graph& graph, const ModuleOptions& options) { return made_of(graph, options, false); }
nn::Composite to_module(Graph&& graph, const ModuleOptions& options) {
  const Graph own = std::move(graph);  // destroyed after its arrays are moved to the modules
  return made_of(own, options, true);
}

}  // namespace spikeforge::nir
