#include "csrc/nir/network/from_module.h"
#include "csrc/nir/network/back_edges.h"
#include "csrc/nir/network/node_modules.h"
#include "csrc/nir/network/restore.h"
#include "csrc/nir/network/tensor.h"
#include "csrc/nir/refuse.h"
#include "csrc/nir/validate.h"
#include "csrc/nn/delay.h"
#include "csrc/nn/time_distributed.h"

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace spikeforge::nir {
namespace {

template <std::size_t D> std::array<std::int64_t, D> numbers(const torch::ExpandingArray<D>& values) { return *values; }

class Exporter {
 public:
  explicit Exporter(double dt) : dt_(dt) {}

  // The properties that other programs will not reproduce, and the neurons that have them.
  const std::map<std::string, std::vector<std::string>>& lost() const { return lost_; }

  Graph graph_of(const nn::Part& part, const std::string& path, const Shape& shape) {
    if (const auto* network = dynamic_cast<const nn::CompositeImpl*>(part.module().get()))
      return network_of(*network, path, shape);
    Graph graph;
    const auto node = node_of(part, path, shape);
    if (!node) refuse(path, "it is not a layer or neuron");
    const Shape out = output_shape(*node, shape, path, ShapeRule::strict);
    graph.nodes = {{"input", {Input{shape}, {}}}, {"node", *node}, {"output", {Output{out}, {}}}};
    graph.edges = {{"input", "node"}, {"node", "output"}};
    return graph;
  }

 private:
  template <class... Arguments>
  [[noreturn]] static void refuse(const std::string& path, fmt::format_string<Arguments...> reason,
                                  Arguments&&... arguments) {
    nir::refuse(path.empty() ? "/" : path, "", reason, std::forward<Arguments>(arguments)...);
  }

  // --- Networks

  Graph network_of(const nn::CompositeImpl& network, const std::string& path, const Shape& shape) {
    const auto parts = network.parts();
    const std::size_t inputs = network.input_names().size();
    if (inputs != 1) refuse(path, "it has {} inputs; one is expected", inputs);

    Wiring net(network);
    Graph graph;
    if (const auto* imported = dynamic_cast<const GraphNetworkImpl*>(&network)) graph.metadata = imported->metadata;
    const auto add_port = [&](std::size_t id, Kind kind) {
      graph.nodes.push_back({net.name(id), {std::move(kind), net.metadata(id)}});
    };
    add_port(net.input(), Input{shape});

    // Adds each part when the shape of its input is known from any of its connections.
    std::vector<std::optional<Shape>> leaving(net.size());  // the output shape of each part and of the input
    leaving[net.input()] = shape;
    std::deque<std::size_t> known = {net.input()};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& [name, part] = parts[i];
      if (const auto* silence = dynamic_cast<const SilenceImpl*>(part.module().get())) {
        leaving[i] = silence->shape();
        known.push_back(i);
      } else if (part.input_names().size() != 1 || part.output_names().size() != 1) {
        refuse(in_node(path, name), "it has several inputs or outputs, for which NIR's edges have no names");
      }
    }
    for (; !known.empty(); known.pop_front())
      for (const std::size_t w : net.wires_from(known.front())) {
        const std::size_t to = net.wires()[w].to;
        if (to > net.input() || leaving[to]) continue;
        leaving[to] = add(graph, net, to, parts[to].second, in_node(path, parts[to].first), *leaving[known.front()]);
        known.push_back(to);
      }
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (!leaving[i]) refuse(in_node(path, parts[i].first), "its input's shape cannot be inferred");
    for (std::size_t output = net.input() + 1; output < net.size(); ++output) {
      Output node;
      for (const std::size_t w : net.wires_to(output)) node.shape = leaving[net.wires()[w].from];
      add_port(output, node);
    }
    connect(graph, path, net, leaving);
    return graph;
  }

  // The parts and ports of a network by index: its parts in order, its input, and its outputs.
  class Wiring {
   public:
    struct Wire {
      std::size_t from, to;
      std::int64_t delay;
      bool from_rest;
      std::string text;  // "a.out -> b.in"
    };

    explicit Wiring(const nn::CompositeImpl& network) {
      std::unordered_map<std::string, std::size_t> parts, outputs;
      for (const auto& [name, part] : network.parts()) {
        parts.emplace(name, names_.size());
        names_.push_back(name);
        is_node_.push_back(!dynamic_cast<const SilenceImpl*>(part.module().get()));
      }
      input_ = names_.size();
      names_.push_back(network.input_names()[0]);
      for (const std::string& name : network.output_names()) {
        outputs.emplace(name, names_.size());
        names_.push_back(name);
      }
      is_node_.resize(names_.size(), true);
      from_.resize(names_.size());
      to_.resize(names_.size());
      for (const auto& [from, to, connection] : network.wires()) {
        const std::size_t from_dot = from.find('.'), to_dot = to.find('.');
        const Wire wire{from_dot == std::string::npos ? input_ : parts.at(from.substr(0, from_dot)),
                        to_dot == std::string::npos ? outputs.at(to) : parts.at(to.substr(0, to_dot)), connection.delay,
                        connection.from_rest, from + " -> " + to};
        from_[wire.from].push_back(wires_.size());
        to_[wire.to].push_back(wires_.size());
        wires_.push_back(wire);
      }
      name_nodes(network);
    }

    std::size_t input() const { return input_; }
    std::size_t size() const { return names_.size(); }
    const std::vector<Wire>& wires() const { return wires_; }
    const std::vector<std::size_t>& wires_from(std::size_t id) const { return from_[id]; }
    const std::vector<std::size_t>& wires_to(std::size_t id) const { return to_[id]; }

    const std::string& name(std::size_t id) const { return names_[id]; }  // of the node
    const std::unordered_set<std::string>& taken() const { return taken_; }
    Group metadata(std::size_t id) const {
      const auto found = metadata_.find(id);
      return found == metadata_.end() ? Group{} : found->second;
    }

    // Parts without a node: those that return their input, and silence in an imported graph.
    void set_passing(std::size_t id) { passing_.insert(id); }
    bool is_passing(std::size_t id) const { return passing_.contains(id); }
    bool is_node(std::size_t id) const { return is_node_[id] && !is_passing(id); }

   private:
    void name_nodes(const nn::CompositeImpl& network) {
      const auto* const imported = dynamic_cast<const GraphNetworkImpl*>(&network);
      std::vector<bool> is_named(names_.size());
      const bool is_one_output = names_.size() == input_ + 2;
      for (std::size_t id = 0; id < names_.size(); ++id) {
        if (imported)
          if (const auto label = imported->labels.find(names_[id]); label != imported->labels.end()) {
            names_[id] = label->second.name;
            metadata_.emplace(id, label->second.metadata);
            is_named[id] = true;
          }
        if (id < input_ || is_named[id]) taken_.insert(names_[id]);
      }
      for (std::size_t id = input_; id < names_.size(); ++id) {
        if (is_named[id]) continue;
        const std::string usual(id == input_ ? input_name : is_one_output ? output_name : names_[id]);
        names_[id] = taken_.insert(usual).second ? usual : free_name(taken_, names_[id], "");
      }
    }

    std::vector<std::string> names_;
    std::vector<bool> is_node_;
    std::size_t input_ = 0;
    std::vector<Wire> wires_;
    std::vector<std::vector<std::size_t>> from_, to_;
    std::unordered_set<std::string> taken_;
    std::unordered_map<std::size_t, Group> metadata_;
    std::unordered_set<std::size_t> passing_;
  };

  // Adds the node of a part; returns the shape of its output.
  Shape add(Graph& graph, Wiring& net, std::size_t id, const nn::Part& part, const std::string& path,
            const Shape& shape) {
    if (const auto* inner = dynamic_cast<const nn::CompositeImpl*>(part.module().get())) {
      Graph nested = network_of(*inner, path, shape);
      Shape out;
      for (const NamedNode& node : nested.nodes)
        if (const auto* output = std::get_if<Output>(&node.node.kind))
          if (output->shape) out = *output->shape;
      graph.nodes.push_back({net.name(id), {std::move(nested), {}}});
      return out;
    }
    auto node = node_of(part, path, shape);
    if (!node) {
      net.set_passing(id);
      return shape;
    }
    Shape out = output_shape(*node, shape, path, ShapeRule::strict);
    const Group metadata = net.metadata(id);
    node->metadata.members.insert(node->metadata.members.end(), metadata.members.begin(), metadata.members.end());
    graph.nodes.push_back({net.name(id), std::move(*node)});
    return out;
  }

  void connect(Graph& graph, const std::string& path, const Wiring& net,
               const std::vector<std::optional<Shape>>& leaving) {
    const auto& wires = net.wires();
    // Returns the node before a part without an effect, which must have a single predecessor.
    const auto source = [&](std::size_t from) {
      while (net.is_passing(from)) {
        const auto& into = net.wires_to(from);
        if (into.size() != 1 || wires[into[0]].delay > 0)
          refuse(in_node(path, net.name(from)), "a sum or a delay leads to a module that does nothing");
        from = wires[into[0]].from;
      }
      return from;
    };
    // Readers add a delay of one step where they cut a cycle, and the cut depends on the nodes. The first attempt has a
    // Delay node for every delay; later ones omit those that a cut replaces.
    const Graph parts = graph;
    std::vector<std::int64_t> cuts(wires.size()), delays;
    for (const auto& wire : wires) delays.push_back(wire.delay);
    // Moves a delay from before a layer to after it. Returns false if the node is not a layer, or if a connection to it
    // has no delay.
    std::set<std::size_t> moved, starts;  // `starts`: cycles that begin with resting values
    const auto move_after = [&](std::size_t id, const std::vector<std::int64_t>& found) {
      const auto node = std::ranges::find(parts.nodes, net.name(id), &NamedNode::name);
      if (node == parts.nodes.end() || !is_layer(node->node) || !moved.insert(id).second) return false;
      for (const std::size_t w : net.wires_to(id))
        if (delays[w] < 1) return false;
      for (const std::size_t w : net.wires_from(id))
        if (found[w] <= delays[w]) return false;
      for (const std::size_t w : net.wires_to(id)) --delays[w];
      for (const std::size_t w : net.wires_from(id)) ++delays[w];
      starts.insert(id);
      return true;
    };
    for (std::size_t round = 0; round <= wires.size() + moved.size(); ++round) {
      graph = parts;
      std::unordered_set<std::string> taken = net.taken();
      std::vector<std::size_t> wire_of;  // of each edge
      for (std::size_t w = 0; w < wires.size(); ++w) {
        const auto& wire = wires[w];
        const std::size_t first = source(wire.from);
        if (!net.is_node(wire.to) || !net.is_node(first)) continue;
        std::string from = net.name(first);
        if (const std::int64_t delay = delays[w] - cuts[w]; delay > 0) {
          const std::string name = free_name(taken, from + "_delayed");
          graph.nodes.push_back(
              {name, {Delay{Array::full(*leaving[wire.from], static_cast<double>(delay) * dt_)}, {}}});
          graph.edges.push_back({from, name});
          wire_of.push_back(w);
          from = name;
        }
        graph.edges.push_back({from, net.name(wire.to)});
        wire_of.push_back(w);
      }
      // Readers list nodes by name.
      std::sort(graph.nodes.begin(), graph.nodes.end(),
                [](const NamedNode& x, const NamedNode& y) { return x.name < y.name; });
      const StepOrder order = step_order(graph);
      std::vector<std::int64_t> found(wires.size());
      for (std::size_t e = 0; e < wire_of.size(); ++e)
        if (order.is_back_edge[e]) ++found[wire_of[e]];
      if (found == cuts) {
        for (std::size_t w = 0; w < wires.size(); ++w)
          if (found[w] > 0 && wires[w].delay > 0 && wires[w].from_rest) starts.insert(source(wires[w].from));
        note_starts(graph, path, net, starts);
        return;
      }
      bool has_moved = false;
      for (std::size_t w = 0; w < wires.size(); ++w) {
        if (found[w] <= delays[w]) continue;
        if (!move_after(wires[w].from, found))
          refuse(path,
                 "readers of NIR delay {} by a step to break a cycle, but this network has its delay at "
                 "another connection",
                 wires[w].text);
        has_moved = true;
      }
      cuts = has_moved ? std::vector<std::int64_t>(wires.size()) : found;
    }
    refuse(path, "its delays cannot be moved to the connections at which readers of NIR break its cycles");
  }

  void note_starts(Graph& graph, const std::string& path, const Wiring& net, const std::set<std::size_t>& starts) {
    for (const std::size_t id : starts) {
      const auto node = std::ranges::find(graph.nodes, net.name(id), &NamedNode::name);
      if (node == graph.nodes.end() || std::holds_alternative<Graph>(node->node.kind)) continue;
      note_start(node->node);
      if (!keeps_zeros(node->node))
        lost_["a bias that comes back in the first step, which others leave out"].push_back(
            in_node(path, net.name(id)));
    }
  }

  // --- Nodes

  // Returns the node of a module; nullopt for a module without an effect.
  std::optional<Node> node_of(const nn::Part& part, const std::string& path, const Shape& shape) {
    const torch::nn::Module& module = *part.module();
    std::optional<Node> neuron;
    std::vector<std::string> lost;
    try {
      neuron = node_of_neuron(module, shape, dt_, lost);
    } catch (const Error& error) {
      refuse(path, "{}", error.reason);
    } catch (const c10::Error& error) {
      refuse(path, "{}", error.what_without_backtrace());
    }
    for (const std::string& what : lost) lost_[what].push_back(path);
    if (neuron) return neuron;
    if (dynamic_cast<const nn::TimeDistributedImpl*>(&module)) return layer_of(*module.children()[0], path, shape);
    return layer_of(module, path, shape);
  }

  std::optional<Node> layer_of(const torch::nn::Module& module, const std::string& path, const Shape& shape) const {
    if (const auto* m = dynamic_cast<const torch::nn::LinearImpl*>(&module)) return matrix(m->weight, m->bias);
    if (const auto* m = dynamic_cast<const StackedLinearImpl*>(&module)) return matrix(m->weight, m->bias);
    if (const auto* m = dynamic_cast<const torch::nn::Conv1dImpl*>(&module)) return conv<1>(*m, path, shape);
    if (const auto* m = dynamic_cast<const torch::nn::Conv2dImpl*>(&module)) return conv<2>(*m, path, shape);
    if (const auto* m = dynamic_cast<const torch::nn::SequentialImpl*>(&module))
      if (auto node = same_conv(*m, path, shape)) return node;
    if (const auto* m = dynamic_cast<const torch::nn::AvgPool2dImpl*>(&module)) return pool(*m, path);
    if (const auto* m = dynamic_cast<const WindowPoolImpl*>(&module)) return pool(m->window);
    if (const auto* m = dynamic_cast<const torch::nn::FlattenImpl*>(&module)) return flatten(*m, path, shape);
    if (const auto* m = dynamic_cast<const nn::DelayImpl*>(&module)) return delay(*m, shape);
    if (dynamic_cast<const torch::nn::IdentityImpl*>(&module) || dynamic_cast<const torch::nn::DropoutImpl*>(&module))
      return {};
    refuse(path, "NIR has no node for {}", module.name());
  }

  static Node matrix(const at::Tensor& weight, const at::Tensor& bias) {
    if (!bias.defined()) return {Linear{array_of(weight)}, {}};
    return {Affine{array_of(weight), array_of(bias)}, {}};
  }

  template <int D, class Module> Node conv(const Module& m, const std::string& path, const Shape& shape) const {
    Conv<D> node;
    const auto& o = m.options;
    if (!std::holds_alternative<torch::enumtype::kZeros>(o.padding_mode()))
      refuse(path, "NIR pads convolutions with zeros only");
    if (shape.size() != D + 1) refuse(path, "it cannot have an input of shape {}", text_of(shape));
    node.input_shape.emplace();
    std::copy(shape.begin() + 1, shape.end(), node.input_shape->begin());
    node.weight = array_of(m.weight);
    node.bias = m.bias.defined() ? array_of(m.bias) : Array::full({m.weight.size(0)}, 0, node.weight.dtype());
    node.stride = numbers(o.stride());
    node.dilation = numbers(o.dilation());
    node.groups = o.groups();
    if (std::holds_alternative<torch::enumtype::kSame>(o.padding()))
      node.padding.mode = PaddingMode::same;
    else if (std::holds_alternative<torch::enumtype::kValid>(o.padding()))
      node.padding.mode = PaddingMode::valid;
    else
      node.padding.numbers = numbers(std::get<torch::ExpandingArray<D>>(o.padding()));
    return {node, {}};
  }

  // Recognises the modules that to_module creates for padding "same".
  std::optional<Node> same_conv(const torch::nn::SequentialImpl& m, const std::string& path, const Shape& shape) const {
    const auto children = m.children();
    if (children.size() != 2) return {};
    const auto same = [&]<int D, class Pad, class Convolution>(const Pad* pad,
                                                               const Convolution* convolution) -> std::optional<Node> {
      if (!pad || !convolution || pad->options.value() != 0) return {};
      Node node = conv<D>(*convolution, path, shape);
      auto& fields = std::get<Conv<D>>(node.kind);
      const bool has_own = fields.padding.numbers != std::array<std::int64_t, D>{};
      if (has_own || *pad->options.padding() != same_padding(fields)) return {};
      fields.padding = {PaddingMode::same, {}};
      return node;
    };
    using namespace torch::nn;
    if (auto node = same.template operator()<1>(dynamic_cast<const ConstantPad1dImpl*>(children[0].get()),
                                                dynamic_cast<const Conv1dImpl*>(children[1].get())))
      return node;
    return same.template operator()<2>(dynamic_cast<const ConstantPad2dImpl*>(children[0].get()),
                                       dynamic_cast<const Conv2dImpl*>(children[1].get()));
  }

  static Node pool(const torch::nn::AvgPool2dImpl& m, const std::string& path) {
    const auto& o = m.options;
    const auto padding = numbers(o.padding());
    if (o.ceil_mode()) refuse(path, "NIR's windows lie within the input: ceil_mode(true) cannot be expressed");
    if (o.divisor_override() && *o.divisor_override() == 1)
      return {SumPool2d{numbers(o.kernel_size()), numbers(o.stride()), padding}, {}};
    if (o.divisor_override()) refuse(path, "NIR has no divisor_override");
    if (!o.count_include_pad() && (padding[0] || padding[1]))
      refuse(path, "NIR's means count the padding: count_include_pad(false) cannot be expressed");
    return {AvgPool2d{numbers(o.kernel_size()), numbers(o.stride()), padding}, {}};
  }
  static Node pool(const WindowPoolImpl::Window& window) {
    const auto pair = [](const std::vector<std::int64_t>& v) { return std::array<std::int64_t, 2>{v[0], v[1]}; };
    const SumPool2d sums{pair(window.kernel_size), pair(window.stride), pair(window.padding)};
    if (window.sums) return {sums, {}};
    return {AvgPool2d{sums.kernel_size, sums.stride, sums.padding}, {}};
  }

  // torch's dimensions include the batch.
  static Node flatten(const torch::nn::FlattenImpl& m, const std::string& path, const Shape& shape) {
    const auto without_batch = [&](std::int64_t d) {
      if (d == 0) refuse(path, "it flattens the batch");
      return d > 0 ? d - 1 : d;
    };
    return {Flatten{without_batch(m.options.start_dim()), without_batch(m.options.end_dim()), shape}, {}};
  }

  Node delay(const nn::DelayImpl& m, const Shape& shape) const {
    return {Delay{array_of((m.steps().to(c10::kDouble) * dt_).expand(shape))}, {}};
  }

  double dt_;
  std::map<std::string, std::vector<std::string>> lost_;
};

std::string listed(const std::vector<std::string>& paths) {
  constexpr std::size_t most = 4;
  std::string list = fmt::format("{}", fmt::join(std::span(paths).first(std::min(most, paths.size())), ", "));
  if (paths.size() > most) list += fmt::format(" and {} more", paths.size() - most);
  return list;
}

}  // namespace

Graph from_module(const nn::Part& module, const at::Tensor& x, double dt, Report* report) {
  if (!(dt > 0) || !std::isfinite(dt)) refuse("", "", "dt must be finite and > 0, but is {}", dt);
  if (!x.defined()) throw Error("", "", "the example x is undefined");
  const c10::NoGradGuard no_grad;
  Exporter exporter(dt);
  Graph graph = exporter.graph_of(module, "", x.sizes().vec());
  validate(graph);
  infer_shapes(graph, ShapeRule::strict);
  std::vector<std::string> lost;
  for (const auto& [what, paths] : exporter.lost()) lost.push_back(fmt::format("{} ({})", what, listed(paths)));
  if (!lost.empty() && report)
    report->warn(fmt::format(
        "some properties have no form in NIR; they are stored in the metadata, which other programs do not read: {}",
        fmt::join(lost, "; ")));
  return graph;
}

}  // namespace spikeforge::nir
