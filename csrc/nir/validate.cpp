#include "csrc/nir/validate.h"
#include "csrc/nir/refuse.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

namespace spikeforge::nir {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 48;  // of a shape without data

class Validator {
 public:
  Validator(const Limits& limits, Report* report) : limits_(limits), report_(report) {}

  void graph(const Graph& graph, const std::string& name, int depth) {
    if (depth > limits_.depth) refuse(name, "", "it is nested more than {} levels deep", limits_.depth);
    const std::string shown = name.empty() ? "/" : name;
    std::unordered_set<std::string_view> names;
    std::size_t inputs = 0, outputs = 0;
    for (const NamedNode& named : graph.nodes) {
      const std::string inner = in_node(name, named.name);
      check_name(named.name, shown);
      if (!names.insert(named.name).second) refuse(inner, "", "two nodes have this name");
      node(named.node, inner, depth);
      inputs += std::holds_alternative<Input>(named.node.kind);
      outputs += std::holds_alternative<Output>(named.node.kind);
    }
    edges(graph, names, shown);
    metadata(graph.metadata, shown, "metadata", 0);
    if (inputs == 0) warn(shown, "nodes", "there is no Input");
    if (outputs == 0) warn(shown, "nodes", "there is no Output");
  }

 private:
  void warn(const std::string& node, std::string_view field, const std::string& what) {
    if (report_) report_->warn(Error(node, std::string(field), what).what());
  }

  void check_name(const std::string& name, const std::string& graph) {
    if (name.empty() || name == "." || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      refuse(graph, "nodes", "\"{}\" cannot be a node's name", printable(name));
    if (name.size() > limits_.string) refuse(graph, "nodes", "a node's name is longer than the limit");
  }

  void edges(const Graph& graph, const std::unordered_set<std::string_view>& names, const std::string& shown) {
    std::set<std::pair<std::string_view, std::string_view>> seen;
    for (const Edge& edge : graph.edges) {
      for (const std::string& end : {edge.from, edge.to})
        if (!names.contains(end))
          refuse(shown, "edges", "{} -> {}: there is no node {}", printable(edge.from), printable(edge.to),
                 printable(end));
      if (!seen.emplace(edge.from, edge.to).second)
        warn(shown, "edges",
             fmt::format("{} -> {} is there more than once, and counts as often", printable(edge.from),
                         printable(edge.to)));
    }
  }

  void node(const Node& node, const std::string& name, int depth) {
    metadata(node.metadata, name, "metadata", 0);
    if (const Graph* inner = std::get_if<Graph>(&node.kind)) return graph(*inner, name, depth + 1);
    for_each_array(node.kind, [&](std::string_view field, const Array& array) { values(name, field, array); });
    std::visit([&](const auto& n) { structure(n, name); }, node.kind);
  }

  void values(const std::string& name, std::string_view field, const Array& array) {
    const bool is_bounded = field.starts_with("tau") || field == "delay";
    if (!is_bounded && (report_ == nullptr || is_finite(array))) return;  // other problems are only warnings
    const Range range = range_of(array);
    if (field.starts_with("tau")) {
      if (range.has_nan || range.has_infinity || (array.count() > 0 && range.least <= 0))
        refuse(name, field, "a time constant must be finite and > 0, but {} is in it", odd_value(range));
    } else if (field == "delay") {
      if (range.has_nan || range.has_infinity || range.least < 0)
        refuse(name, field, "a delay must be finite and >= 0, but {} is in it", odd_value(range));
    } else if (range.has_nan) {
      warn(name, field, "NaN is in it");
    } else if (range.has_infinity) {
      warn(name, field, "infinity is in it");
    }
  }
  static std::string odd_value(const Range& range) {
    if (range.has_nan) return "NaN";
    return fmt::format("{}", std::isinf(range.greatest) ? range.greatest : range.least);
  }

  void shape(const std::string& name, std::string_view field, std::span<const std::int64_t> sizes) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) {
      if (size < 0) refuse(name, field, "a dimension is {}", size);
      if (__builtin_mul_overflow(count, std::max<std::int64_t>(size, 1), &count) || count > most_elements)
        refuse(name, field, "it has too many elements");
    }
  }
  void at_least(const std::string& name, std::string_view field, std::span<const std::int64_t> numbers,
                std::int64_t least) {
    for (const std::int64_t number : numbers)
      if (number < least || number > INT32_MAX)
        refuse(name, field, "expected numbers from {} to {}, but {} is in it", least, INT32_MAX, number);
  }

  void structure(const Input& n, const std::string& name) { shape(name, "shape", n.shape); }
  void structure(const Output& n, const std::string& name) {
    if (n.shape) shape(name, "shape", *n.shape);
  }
  void structure(const Linear& n, const std::string& name) { matrix(n.weight, name); }
  void structure(const Affine& n, const std::string& name) {
    matrix(n.weight, name);
    Shape out = n.weight.shape();
    out.pop_back();
    if (n.bias.shape() != out && n.bias.count() != 1)
      refuse(name, "bias", "expected shape {}, as weight has shape {}, but it is {}", text_of(out),
             text_of(n.weight.shape()), text_of(n.bias.shape()));
  }
  static void matrix(const Array& weight, const std::string& name) {
    if (weight.shape().size() < 2)
      refuse(name, "weight", "expected shape [..., out, in], but it is {}", text_of(weight.shape()));
  }

  template <int D> void structure(const Conv<D>& n, const std::string& name) {
    const Shape& weight = n.weight.shape();
    if (weight.size() != D + 2)
      refuse(name, "weight", "expected shape [out, in, {}], but it is {}", D == 1 ? "x" : "x, y", text_of(weight));
    if (n.weight.count() == 0) refuse(name, "weight", "it has no elements: its shape is {}", text_of(weight));
    if (n.input_shape) shape(name, "input_shape", *n.input_shape);
    at_least(name, "stride", n.stride, 1);
    at_least(name, "padding", n.padding.numbers, 0);
    at_least(name, "dilation", n.dilation, 1);
    at_least(name, "groups", std::array{n.groups}, 1);
    if (weight[0] % n.groups != 0)
      refuse(name, "groups", "{} output channels are not divisible by {} groups", weight[0], n.groups);
    if (n.bias.shape() != Shape{weight[0]} && n.bias.count() != 1)
      refuse(name, "bias", "expected shape [{}], one for each output channel, but it is {}", weight[0],
             text_of(n.bias.shape()));
  }

  void structure(const SumPool2d& n, const std::string& name) { pool(n, name); }
  void structure(const AvgPool2d& n, const std::string& name) { pool(n, name); }
  template <class N> void pool(const N& n, const std::string& name) {
    at_least(name, "kernel_size", n.kernel_size, 1);
    at_least(name, "stride", n.stride, 1);
    at_least(name, "padding", n.padding, 0);
  }
  void structure(const Flatten& n, const std::string& name) {
    if (n.input_type) shape(name, "input_type", *n.input_type);
  }
  template <class N> void structure(const N&, const std::string&) {}  // elementwise: only shapes need checks

  // Applies the limits of reading to metadata that are written.
  void metadata(const Group& group, const std::string& node, const std::string& field, int depth) {
    if (depth > 2 * limits_.depth) refuse(node, field, "it is nested more than {} levels deep", limits_.depth);
    std::unordered_set<std::string_view> names;
    for (const Member& member : group.members) {
      const std::string inner = field + "/" + member.name;
      if (member.name.empty() || member.name == "." || member.name.find('/') != std::string::npos ||
          member.name.find('\0') != std::string::npos || !names.insert(member.name).second)
        refuse(node, field, "\"{}\" cannot be the name of an entry", printable(member.name));
      if (const Group* deeper = std::get_if<Group>(&member.value)) metadata(*deeper, node, inner, depth + 1);
      if (const Strings* strings = std::get_if<Strings>(&member.value))
        if (count_of(strings->shape) != static_cast<std::int64_t>(strings->values.size()))
          refuse(node, inner, "it has {} strings, but shape {}", strings->values.size(), text_of(strings->shape));
    }
  }

  const Limits& limits_;
  Report* report_;
};

std::optional<Error> why_not_runnable(const Graph& graph, const std::string& name) {
  std::unordered_set<std::string_view> led_to, leading;
  for (const Edge& edge : graph.edges) {
    led_to.insert(edge.to);
    leading.insert(edge.from);
  }
  bool has_way_in = false;
  for (const NamedNode& node : graph.nodes) {
    const std::string inner = in_node(name, node.name);
    const bool is_input = std::holds_alternative<Input>(node.node.kind);
    if (is_input && led_to.contains(node.name)) return Error(inner, "", "an edge leads to this Input");
    if (std::holds_alternative<Output>(node.node.kind) && leading.contains(node.name))
      return Error(inner, "", "an edge leads on from this Output");
    has_way_in |= is_input || !led_to.contains(node.name);
    if (const Graph* nested = std::get_if<Graph>(&node.node.kind))
      if (auto reason = why_not_runnable(*nested, inner)) return reason;
  }
  if (has_way_in) return {};
  return Error(name.empty() ? "/" : name, "edges",
               graph.nodes.empty()
                   ? "there is nothing to run"
                   : "there is no Input, and every node is behind a cycle, so the graph cannot receive input");
}

}  // namespace

std::optional<Error> why_not_runnable(const Graph& graph) { return why_not_runnable(graph, ""); }

void validate(const Graph& graph, const Limits& limits, Report* report) {
  Validator(limits, report).graph(graph, "", 1);
}

}  // namespace spikeforge::nir
