#include "tools/nir/command.h"
#include "tools/nir/text.h"

#include "csrc/nir/error.h"
#include "csrc/nir/read.h"

#include <fmt/format.h>

#include <memory>
#include <unordered_map>

namespace spikeforge::nir {
namespace {

struct DotOptions : ReadOptions {
  std::string file;
};

// Nodes have their full names; a nested graph is a cluster, and edges to it end at its Inputs and Outputs.
class Drawing {
 public:
  explicit Drawing(bool is_sound) : is_sound_(is_sound) {}

  void graph(const Graph& graph, const std::string& name, int indent) {
    // Shapes are optional in a drawing.
    std::vector<NodeShapes> shapes(graph.nodes.size());
    try {
      if (is_sound_) shapes = infer_shapes(graph, ShapeRule::tolerant);
    } catch (const Error&) {
    }
    std::unordered_map<std::string_view, const Graph*> graphs;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const NamedNode& node = graph.nodes[i];
      const std::string inner = in_node(name, node.name);
      if (const Graph* nested = std::get_if<Graph>(&node.node.kind)) {
        graphs.emplace(node.name, nested);
        line(indent, "subgraph {} {{", in_quotes("cluster " + inner));
        line(indent + 1, "label={};", in_quotes(printable(node.name)));
        this->graph(*nested, inner, indent + 1);
        if (nested->nodes.empty()) line(indent + 1, "{} [label=\"\", shape=point];", in_quotes(inner));
        line(indent, "}}");
      } else {
        const std::string out = shapes[i].out ? text_of(*shapes[i].out) : "?";
        const std::string label = fmt::format("{}\n{} {}", printable(node.name), node.node.type(), out);
        line(indent, "{} [label={}{}];", in_quotes(inner), with_line_break(label), style(node.node.kind));
      }
    }
    const auto nested = [&](const std::string& node) {
      const auto found = graphs.find(node);
      return found == graphs.end() ? nullptr : found->second;
    };
    for (const Edge& edge : graph.edges)
      line(indent, "{} -> {};", in_quotes(end<Output>(nested(edge.from), in_node(name, edge.from))),
           in_quotes(end<Input>(nested(edge.to), in_node(name, edge.to))));
  }

 private:
  template <class... Arguments>
  static void line(int indent, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::print("{:{}}{}\n", "", 2 * indent, fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  static std::string with_line_break(const std::string& label) {
    const std::size_t at = label.find('\n');
    std::string first = in_quotes(label.substr(0, at)), second = in_quotes(label.substr(at + 1));
    first.pop_back();
    return first + "\\n" + second.substr(1);
  }

  static std::string_view style(const Kind& kind) {
    if (std::holds_alternative<Input>(kind) || std::holds_alternative<Output>(kind)) return ", shape=oval";
    const bool is_neuron = std::holds_alternative<IF>(kind) || std::holds_alternative<LIF>(kind) ||
                           std::holds_alternative<CubaLIF>(kind) || std::holds_alternative<Threshold>(kind);
    return is_neuron ? ", style=filled, fillcolor=lightgrey" : "";
  }

  // Returns the node at which an edge to or from a node ends: for a nested graph, a node within it.
  template <class Port> static std::string end(const Graph* nested, const std::string& name) {
    if (!nested || nested->nodes.empty()) return name;
    for (const NamedNode& port : nested->nodes)
      if (std::holds_alternative<Port>(port.node.kind)) return in_node(name, port.name);
    const NamedNode& first = nested->nodes.front();
    return end<Port>(std::get_if<Graph>(&first.node.kind), in_node(name, first.name));
  }

  bool is_sound_;
};

int dot(const DotOptions& options) {
  Report report;
  const Graph graph = read_to_look(options.file, options.limits, report);
  fmt::print("digraph nir {{\n  node [shape=box, fontname=sans];\n");
  if (!report.defect.empty()) fmt::print("  label={};\n", in_quotes(printable("not sound: " + report.defect)));
  Drawing(report.defect.empty()).graph(graph, "", 1);
  fmt::print("}}\n");
  return 0;
}

}  // namespace

Command add_dot(CLI::App& program) {
  const auto options = std::make_shared<DotOptions>();
  CLI::App* const app =
      program.add_subcommand("dot", "Print a drawing of the graph for Graphviz: ... | dot -Tsvg > graph.svg");
  app->add_option("file", options->file, "A NIR file")->required();
  add_limits(*app, *options);
  return {app, [options] { return dot(*options); }};
}

}  // namespace spikeforge::nir
