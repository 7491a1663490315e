#include <spikeforge/nir/error.h>
#include <spikeforge/nir/network/back_edges.h>
#include <spikeforge/nir/network/from_module.h>
#include <spikeforge/nir/network/node_modules.h>
#include <spikeforge/nir/network/restore.h>
#include <spikeforge/nir/network/tensor.h>
#include <spikeforge/nir/validate.h>
#include <spikeforge/nn/delay.h>
#include <spikeforge/nn/time_distributed.h>

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace spikeforge::nir {
namespace {

template <std::size_t D>
std::array<std::int64_t, D> numbers(const torch::ExpandingArray<D>& values) {
  return *values;
}

class Exporter {
 public:
  explicit Exporter(double dt) : dt_(dt) {}

  // What other programs will do otherwise, and which neurons.
  const std::map<std::string, std::vector<std::string>>& lost() const { return lost_; }

  Graph graph_of(const nn::Part& part, const std::string& path, const Shape& shape) {
    if (const auto* network = dynamic_cast<const nn::CompositeImpl*>(part.module().get()))
      return network_of(*network, path, shape);
    Graph graph;
    const auto node = node_of(part, path, shape);
    if (!node) refuse(path, "it is no layer and no neuron");
    const Shape out = output_shape(*node, shape, path, ShapeRule::strict);
    graph.nodes = {{"input", {Input{shape}, {}}}, {"node", *node}, {"output", {Output{out}, {}}}};
    graph.edges = {{"input", "node"}, {"node", "output"}};
    return graph;
  }

 private:
  [[noreturn]] static void refuse(const std::string& path, const std::string& reason) {
    throw Error(path.empty() ? "/" : path, "", reason);
  }

  // --- Networks

  Graph network_of(const nn::CompositeImpl& network, const std::string& path, const Shape& shape) {
    const auto parts = network.parts();
    const auto wires = network.wires();
    const nn::Names inputs = network.input_names(), outputs = network.output_names();
    if (inputs.size() != 1) refuse(path, fmt::format("it has {} inputs; one is expected", inputs.size()));

    std::map<std::string, const nn::Part*> by_name;
    std::set<std::string> names;
    for (const auto& [name, part] : parts) {
      by_name.emplace(name, &part);
      names.insert(name);
    }
    const auto port_name = [&](const char* wanted, const std::string& own) {
      std::string name = names.insert(wanted).second ? wanted : own;
      for (int n = 2; name != wanted && !names.insert(name).second; ++n) name = own + std::to_string(n);
      return name;
    };
    const auto part_of = [](const std::string& port) { return port.substr(0, port.find('.')); };

    Graph graph;
    std::map<std::string, std::string> port_nodes;  // of the network's own ports
    std::map<std::string, Shape> leaving;           // each part and input
    port_nodes[inputs[0]] = port_name("input", inputs[0]);
    graph.nodes.push_back({port_nodes[inputs[0]], {Input{shape}, {}}});
    leaving[inputs[0]] = shape;

    // Each part as soon as the shape of what comes to it is known, by any of its connections.
    std::set<std::string> passing, silent;
    std::vector<std::string> left;
    left.reserve(parts.size());
    for (const auto& [name, part] : parts) left.push_back(name);
    while (!left.empty()) {
      const std::size_t before = left.size();
      std::erase_if(left, [&](const std::string& name) {
        const nn::Part& part = *by_name.at(name);
        const std::string inner = path.empty() ? name : path + "/" + name;
        if (dynamic_cast<const SilenceImpl*>(part.module().get())) {  // of an imported graph: no node, and no edges
          silent.insert(name);
          return true;
        }
        if (part.input_names().size() != 1 || part.output_names().size() != 1)
          refuse(inner, "it has several inputs or outputs, for which NIR's edges have no names");
        for (const auto& wire : wires) {
          if (part_of(wire.to) != name || wire.to.find('.') == std::string::npos) continue;
          const auto from = leaving.find(part_of(wire.from));
          if (from == leaving.end()) continue;
          add(graph, name, part, inner, from->second, leaving, passing);
          return true;
        }
        return false;
      });
      if (left.size() == before)
        refuse(path.empty() ? left[0] : path + "/" + left[0], "its input's shape cannot be told");
    }
    for (const std::string& output : outputs) {
      port_nodes[output] = port_name(outputs.size() == 1 ? "output" : output.c_str(), output);
      Output node;
      for (const auto& wire : wires)
        if (wire.to == output && leaving.contains(part_of(wire.from))) node.shape = leaving.at(part_of(wire.from));
      graph.nodes.push_back({port_nodes[output], {node, {}}});
    }
    connect(graph, path, wires, port_nodes, passing, silent, leaving, names);
    return graph;
  }

  void add(Graph& graph, const std::string& name, const nn::Part& part, const std::string& path, const Shape& shape,
           std::map<std::string, Shape>& leaving, std::set<std::string>& passing) {
    if (const auto* inner = dynamic_cast<const nn::CompositeImpl*>(part.module().get())) {
      Graph nested = network_of(*inner, path, shape);
      for (const NamedNode& node : nested.nodes)
        if (const auto* output = std::get_if<Output>(&node.node.kind))
          if (output->shape) leaving[name] = *output->shape;
      graph.nodes.push_back({name, {std::move(nested), {}}});
      return;
    }
    auto node = node_of(part, path, shape);
    if (!node) {
      passing.insert(name);
      leaving[name] = shape;
      return;
    }
    leaving[name] = output_shape(*node, shape, path, ShapeRule::strict);
    graph.nodes.push_back({name, std::move(*node)});
  }

  void connect(Graph& graph, const std::string& path, const std::vector<nn::CompositeImpl::Wire>& wires,
               const std::map<std::string, std::string>& port_nodes, const std::set<std::string>& passing,
               const std::set<std::string>& silent, const std::map<std::string, Shape>& leaving,
               const std::set<std::string>& names) {
    const auto end = [&](const std::string& port) {
      const std::size_t dot = port.find('.');
      return dot == std::string::npos ? port_nodes.at(port) : port.substr(0, dot);
    };
    // What a part that does nothing stands for: the one thing that leads to it.
    const auto source = [&](std::string from) {
      while (passing.contains(from)) {
        const nn::CompositeImpl::Wire* only = nullptr;
        for (const auto& wire : wires) {
          if (end(wire.to) != from) continue;
          if (only || wire.connection.delay > 0)
            refuse(path.empty() ? from : path + "/" + from, "a sum or a delay leads to a module that does nothing");
          only = &wire;
        }
        from = end(only->from);
      }
      return from;
    };
    // Of a wire's delay, readers give one step where they cut a cycle there. Where that is depends on what nodes there
    // are: tried with a Delay for every delay first, then without those that a cut makes superfluous.
    Graph parts = graph;
    std::vector<std::int64_t> cuts(wires.size()), delays;
    for (const auto& wire : wires) delays.push_back(wire.connection.delay);
    // A delay before a layer is one after it. False: that is no layer, or not all that leads there has a delay.
    std::set<std::string> moved, starts;  // the latter: of cycles that bring what a silent network gives
    const auto move_behind = [&](const std::string& name, const std::vector<std::int64_t>& found) {
      const auto node = std::ranges::find(parts.nodes, name, &NamedNode::name);
      if (node == parts.nodes.end() || !is_layer(node->node) || moved.contains(name)) return false;
      for (std::size_t w = 0; w < wires.size(); ++w) {
        if (end(wires[w].to) == name && delays[w] < 1) return false;
        if (end(wires[w].from) == name && found[w] <= delays[w]) return false;
      }
      for (std::size_t w = 0; w < wires.size(); ++w) {
        if (end(wires[w].to) == name) --delays[w];
        if (end(wires[w].from) == name) ++delays[w];
      }
      moved.insert(name);
      starts.insert(name);
      return true;
    };
    for (std::size_t round = 0; round <= wires.size() + moved.size(); ++round) {
      graph = parts;
      std::set<std::string> taken = names;
      std::vector<std::size_t> wire_of;  // each edge
      for (std::size_t w = 0; w < wires.size(); ++w) {
        const auto& wire = wires[w];
        const std::string to = end(wire.to);
        std::string from = source(end(wire.from));
        if (passing.contains(to) || silent.contains(to) || silent.contains(from)) continue;
        if (const std::int64_t delay = delays[w] - cuts[w]; delay > 0) {
          std::string name = from + "_delayed";
          for (int n = 2; !taken.insert(name).second; ++n) name = from + "_delayed_" + std::to_string(n);
          const Shape& shape = leaving.at(wire.from.substr(0, wire.from.find('.')));
          graph.nodes.push_back({name, {Delay{Array::full(shape, static_cast<double>(delay) * dt_)}, {}}});
          graph.edges.push_back({from, name});
          wire_of.push_back(w);
          from = name;
        }
        graph.edges.push_back({from, to});
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
          if (found[w] > 0 && wires[w].connection.from_rest && wires[w].connection.delay > 0)
            starts.insert(end(wires[w].from));
        for (NamedNode& node : graph.nodes) {
          if (!starts.contains(node.name) || std::holds_alternative<Graph>(node.node.kind)) continue;
          note_start(node.node);
          if (keeps_zeros(node.node)) continue;
          lost_["a bias that comes back in the first step, which others leave out"].push_back(
              path.empty() ? node.name : path + "/" + node.name);
        }
        return;
      }
      bool has_moved = false;
      for (std::size_t w = 0; w < wires.size(); ++w)
        if (found[w] > delays[w]) {
          if (!move_behind(end(wires[w].from), found))
            refuse(path,
                   fmt::format("readers of NIR delay {} -> {} by a step, as a cycle leads through it, but here its "
                               "delay lies elsewhere",
                               wires[w].from, wires[w].to));
          has_moved = true;
        }
      cuts = has_moved ? std::vector<std::int64_t>(wires.size()) : found;
    }
    refuse(path, "its delays cannot be laid where readers of NIR cut its cycles");
  }

  // --- Nodes

  // Nothing: a module that does nothing.
  std::optional<Node> node_of(const nn::Part& part, const std::string& path, const Shape& shape) {
    const torch::nn::Module& module = *part.module();
    std::optional<Node> neuron;
    std::vector<std::string> lost;
    try {
      neuron = node_of_neuron(module, shape, dt_, lost);
    } catch (const Error& error) {
      refuse(path, error.reason);
    } catch (const c10::Error& error) {
      refuse(path, error.what_without_backtrace());
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
    refuse(path, fmt::format("NIR has no node for {}", module.name()));
  }

  static Node matrix(const at::Tensor& weight, const at::Tensor& bias) {
    if (!bias.defined()) return {Linear{array_of(weight)}, {}};
    return {Affine{array_of(weight), array_of(bias)}, {}};
  }

  template <int D, class Module>
  Node conv(const Module& m, const std::string& path, const Shape& shape) const {
    Conv<D> node;
    const auto& o = m.options;
    if (!std::holds_alternative<torch::enumtype::kZeros>(o.padding_mode()))
      refuse(path, "NIR pads convolutions with zeros only");
    if (shape.size() != D + 1) refuse(path, fmt::format("{} arrives", text_of(shape)));
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

  // What to_module makes of padding "same".
  std::optional<Node> same_conv(const torch::nn::SequentialImpl& m, const std::string& path, const Shape& shape) const {
    const auto children = m.children();
    if (children.size() != 2) return {};
    const auto same = [&]<int D, class Pad, class Convolution>(const Pad* pad,
                                                               const Convolution* convolution) -> std::optional<Node> {
      if (!pad || !convolution || pad->options.value() != 0) return {};
      Node node = conv<D>(*convolution, path, shape);
      auto& fields = std::get<Conv<D>>(node.kind);
      for (int d = 0; d < D; ++d) {
        const std::int64_t total = fields.dilation[d] * (fields.weight.shape()[d + 2] - 1);
        const auto& sides = *pad->options.padding();
        const int at = 2 * (D - 1 - d);
        if (sides[at] != total / 2 || sides[at + 1] != total - total / 2 || fields.padding.numbers[d] != 0) return {};
      }
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

  // torch counts the batch.
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
  if (!(dt > 0) || !std::isfinite(dt)) throw Error("", "", fmt::format("dt must be finite and > 0, but is {}", dt));
  if (!x.defined()) throw Error("", "", "the example x is undefined");
  const c10::NoGradGuard no_grad;
  Exporter exporter(dt);
  Graph graph = exporter.graph_of(module, "", x.sizes().vec());
  validate(graph);
  infer_shapes(graph, ShapeRule::strict);
  std::vector<std::string> lost;
  for (const auto& [what, paths] : exporter.lost()) lost.push_back(fmt::format("{} ({})", what, listed(paths)));
  if (!lost.empty() && report)
    report->warn(fmt::format("what NIR cannot say is in the metadata, which other programs do not read: {}",
                             fmt::join(lost, "; ")));
  return graph;
}

}  // namespace spikeforge::nir
