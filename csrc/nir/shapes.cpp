#include "csrc/nir/shapes.h"
#include "csrc/nir/refuse.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

namespace spikeforge::nir {
namespace {

Shape concatenated(Shape front, std::initializer_list<std::int64_t> back) {
  front.insert(front.end(), back);
  return front;
}

// Returns the shape [..., out, in] of a weight without out, or without in.
Shape matrix_input(const Array& weight) {
  const Shape& w = weight.shape();
  return concatenated({w.begin(), w.end() - 2}, {w.back()});
}
Shape matrix_output(const Array& weight) { return {weight.shape().begin(), weight.shape().end() - 1}; }

// Returns the number of window positions: floor((size + padding of both sides - reach) / stride) + 1.
std::int64_t window_count(std::int64_t size, std::int64_t padding, std::int64_t reach, std::int64_t stride,
                          const std::string& node) {
  const std::int64_t room = size + padding - reach;
  if (room < 0)
    refuse(node, "", "a window of {} does not fit into {} elements, padding included", reach, size + padding);
  return room / stride + 1;
}

bool broadcasts(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  return std::equal(from.rbegin(), from.rend(), to.rbegin(), [](auto a, auto b) { return a == 1 || a == b; });
}

template <int D> Shape conv_input(const Conv<D>& n) {
  Shape shape{n.weight.shape()[1] * n.groups};
  shape.insert(shape.end(), n.input_shape->begin(), n.input_shape->end());
  return shape;
}

template <int D> Shape conv_output(const Conv<D>& n, const Shape& in, const std::string& node, ShapeRule rule) {
  const Shape& weight = n.weight.shape();
  if (in.size() != D + 1)
    refuse(node, "", "{} takes [channels, {}], but the input has shape {}", n.type, D == 1 ? "x" : "x, y", text_of(in));
  if (in[0] != weight[1] * n.groups)
    refuse(node, "weight", "it is for {} input channels (weight {}, {} groups), but the input has shape {}",
           weight[1] * n.groups, text_of(weight), n.groups, text_of(in));
  if (n.input_shape && rule == ShapeRule::strict && conv_input(n) != in)
    refuse(node, "input_shape", "it declares the shape {}, but the input has shape {}",
           text_of({n.input_shape->begin(), n.input_shape->end()}), text_of(in));
  Shape out{weight[0]};
  for (int d = 0; d < D; ++d) {
    const std::int64_t size = in[d + 1], stride = n.stride[d];
    const std::int64_t reach = n.dilation[d] * (weight[d + 2] - 1) + 1;
    switch (n.padding.mode) {
      case PaddingMode::numbers:
        out.push_back(window_count(size, 2 * n.padding.numbers[d], reach, stride, node));
        break;
      case PaddingMode::valid: out.push_back(window_count(size, 0, reach, stride, node)); break;
      // Padding keeps the size at stride 1; a larger stride selects every stride-th element.
      case PaddingMode::same: out.push_back(window_count(size, reach - 1, reach, stride, node)); break;
    }
  }
  return out;
}

Shape pool_output(const auto& n, const Shape& in, const std::string& node) {
  if (in.size() < 2) refuse(node, "", "{} takes [..., height, width], but the input has shape {}", n.type, text_of(in));
  Shape out = in;
  for (std::size_t d = 0; d < 2; ++d) {
    std::int64_t& size = out[in.size() - 2 + d];
    size = window_count(size, 2 * n.padding[d], n.kernel_size[d], n.stride[d], node);
  }
  return out;
}

Shape flatten_output(const Flatten& n, const Shape& in, const std::string& node, ShapeRule rule) {
  const auto rank = static_cast<std::int64_t>(in.size());
  if (n.input_type && rule == ShapeRule::strict && *n.input_type != in)
    refuse(node, "input_type", "it declares the shape {}, but the input has shape {}", text_of(*n.input_type),
           text_of(in));
  const auto dimension = [&](std::string_view field, std::int64_t d) {
    const std::int64_t counted = d < 0 ? d + rank : d;
    if (counted < 0 || counted >= rank) refuse(node, field, "there is no dimension {} in {}", d, text_of(in));
    return counted;
  };
  const std::int64_t first = dimension("start_dim", n.start_dim), last = dimension("end_dim", n.end_dim);
  if (first > last) refuse(node, "end_dim", "dimension {} is before start_dim {}", n.end_dim, n.start_dim);
  Shape out(in.begin(), in.begin() + first);
  std::int64_t flat = 1;
  for (std::int64_t d = first; d <= last; ++d)
    if (__builtin_mul_overflow(flat, in[static_cast<std::size_t>(d)], &flat))
      refuse(node, "", "{} has too many elements to be flattened", text_of(in));
  out.push_back(flat);
  out.insert(out.end(), in.begin() + last + 1, in.end());
  return out;
}

// Returns the common shape of the parameters of an elementwise node.
Shape parameter_shape(const Kind& kind, const std::string& node, ShapeRule rule) {
  std::optional<Shape> shape;
  std::string first;
  for_each_array(kind, [&](std::string_view field, const Array& array) {
    // NIR allows a single number for w_in, which readers expand.
    if (field == "w_in" && array.count() == 1 && shape) return;
    if (!shape) {
      shape = array.shape();
      first = field;
    } else if (array.shape() != *shape) {
      if (rule == ShapeRule::strict)
        refuse(node, field, "expected shape {}, that of {}, but it is {}", text_of(*shape), first,
               text_of(array.shape()));
      if (broadcasts(*shape, array.shape()))
        shape = array.shape();
      else if (!broadcasts(array.shape(), *shape))
        refuse(node, field, "shape {} does not broadcast with {}, that of {}", text_of(array.shape()), text_of(*shape),
               first);
    }
  });
  return shape.value_or(Shape{});
}

struct InnerShapes {
  std::optional<Shape> in, out;
  std::size_t inputs = 0, outputs = 0;
};

InnerShapes shapes_of_nested(const Graph& graph, const std::string& name, ShapeRule rule, Report* report,
                             const std::optional<Shape>& arriving);

// Returns the input shape that a node declares.
std::optional<Shape> own_input(const Node& node, const std::string& name, ShapeRule rule) {
  return std::visit(
      [&]<class N>(const N& n) -> std::optional<Shape> {
        if constexpr (is_one_of<N, Input, Output>)
          return n.shape;
        else if constexpr (is_one_of<N, Affine, Linear>)
          return matrix_input(n.weight);
        else if constexpr (is_one_of<N, Conv1d, Conv2d>)
          return n.input_shape ? std::optional(conv_input(n)) : std::nullopt;
        else if constexpr (is_one_of<N, SumPool2d, AvgPool2d>)
          return {};
        else if constexpr (std::is_same_v<N, Flatten>)
          return n.input_type;
        else if constexpr (std::is_same_v<N, Graph>)
          return {};
        else
          return parameter_shape(node.kind, name, rule);
      },
      node.kind);
}

class Inference {
 public:
  // `arriving` is the shape at the graph's first Input. Under the tolerant rule, it has precedence over the declared
  // one.
  Inference(const Graph& graph, const std::string& name, ShapeRule rule, Report* report,
            const std::optional<Shape>& arriving = {})
      : graph_(graph),
        name_(name),
        rule_(rule),
        report_(report),
        arriving_(arriving),
        shapes_(graph.nodes.size()),
        resolved_(graph.nodes.size()) {
    std::unordered_map<std::string_view, std::size_t> index;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) index.emplace(graph.nodes[i].name, i);
    successors_.resize(graph.nodes.size());
    has_predecessor_.resize(graph.nodes.size());
    for (const Edge& edge : graph.edges) {
      const auto from = index.find(edge.from), to = index.find(edge.to);
      if (from == index.end() || to == index.end())
        refuse(shown(), "edges", "{} -> {} joins nodes that are not there", printable(edge.from), printable(edge.to));
      edges_.emplace_back(from->second, to->second);
      successors_[from->second].push_back(to->second);
      has_predecessor_[to->second] = true;
    }
  }

  std::vector<NodeShapes> infer() {
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      if (is_fixed(i))
        resolve(i, std::holds_alternative<Input>(node(i).kind) ? std::exchange(arriving_, {}) : std::nullopt);
    follow();
    // Resolves nodes that no Input reaches: cycles, and nodes without predecessors.
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      if (resolved_[i]) continue;
      auto own = own_input(node(i), name_of(i), rule_);
      if (!own && !std::holds_alternative<Graph>(node(i).kind)) continue;
      resolve(i, std::move(own));
      follow();
    }
    check_edges();
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      if (!shapes_[i].in || !shapes_[i].out) complain(name_of(i), "", "its shape cannot be inferred");
    return std::move(shapes_);
  }

 private:
  const Node& node(std::size_t i) const { return graph_.nodes[i].node; }
  std::string name_of(std::size_t i) const { return in_node(name_, graph_.nodes[i].name); }
  std::string shown() const { return name_.empty() ? "/" : name_; }

  // Throws an error under the strict rule; otherwise adds a warning.
  void complain(const std::string& node, std::string_view field, const std::string& what) {
    if (rule_ == ShapeRule::strict) throw Error(node, std::string(field), what);
    if (report_) report_->warn(Error(node, std::string(field), what).what());
  }

  // True if the node's shape does not depend on the input.
  bool is_fixed(std::size_t i) const {
    const Kind& kind = node(i).kind;
    if (std::holds_alternative<Input>(kind)) return true;
    if (std::holds_alternative<Graph>(kind)) return rule_ == ShapeRule::strict || !has_predecessor_[i];
    return rule_ == ShapeRule::strict && own_input(node(i), name_of(i), rule_).has_value();
  }

  void resolve(std::size_t i, std::optional<Shape> arriving) {
    if (resolved_[i]) return;
    resolved_[i] = true;
    const std::string name = name_of(i);
    NodeShapes& shapes = shapes_[i];
    if (const Graph* inner = std::get_if<Graph>(&node(i).kind)) {
      const InnerShapes nested = shapes_of_nested(*inner, name, rule_, report_, arriving);
      if (has_predecessor_[i] && nested.inputs != 1)
        refuse(name, "nodes", "an edge leads to this graph, which has {} Inputs instead of one", nested.inputs);
      if (!successors_[i].empty() && nested.outputs != 1)
        refuse(name, "nodes", "an edge comes from this graph, which has {} Outputs instead of one", nested.outputs);
      shapes = {nested.in, nested.out};
    } else {
      const std::optional<Shape> own = own_input(node(i), name, rule_);
      shapes.in = arriving && rule_ == ShapeRule::tolerant ? arriving : own ? own : arriving;
      if (shapes.in) shapes.out = output_shape(node(i), *shapes.in, name, rule_);
      if (own && shapes.in != own && !is_broadcast(i) && report_)
        report_->warn(Error(name, "",
                            fmt::format("it declares the input shape {}, but the input has shape {}", text_of(*own),
                                        text_of(*shapes.in)))
                          .what());
    }
    if (shapes.out) ready_.push_back(i);
  }

  bool is_broadcast(std::size_t i) const {
    return std::visit([]<class N>(const N&) { return !is_one_of<N, Input, Output, Flatten, Conv1d, Conv2d>; },
                      node(i).kind);
  }

  void follow() {
    while (!ready_.empty()) {
      const std::size_t i = ready_.front();
      ready_.pop_front();
      for (const std::size_t next : successors_[i]) resolve(next, shapes_[i].out);
    }
  }

  void check_edges() {
    for (const auto& [from, to] : edges_) {
      const std::optional<Shape>&out = shapes_[from].out, &in = shapes_[to].in;
      if (!out || !in || *out == *in) continue;
      refuse(shown(), "edges", "{} -> {}: the output has shape {}, but the input must have {}",
             printable(graph_.nodes[from].name), printable(graph_.nodes[to].name), text_of(*out), text_of(*in));
    }
  }

  const Graph& graph_;
  const std::string name_;
  const ShapeRule rule_;
  Report* report_;
  std::optional<Shape> arriving_;
  std::vector<NodeShapes> shapes_;
  std::vector<bool> resolved_;
  std::vector<std::vector<std::size_t>> successors_;
  std::vector<bool> has_predecessor_;
  std::vector<std::pair<std::size_t, std::size_t>> edges_;
  std::deque<std::size_t> ready_;
};

InnerShapes shapes_of_nested(const Graph& graph, const std::string& name, ShapeRule rule, Report* report,
                             const std::optional<Shape>& arriving) {
  const std::vector<NodeShapes> shapes = Inference(graph, name, rule, report, arriving).infer();
  InnerShapes nested;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (std::holds_alternative<Input>(graph.nodes[i].node.kind) && nested.inputs++ == 0) nested.in = shapes[i].in;
    if (std::holds_alternative<Output>(graph.nodes[i].node.kind) && nested.outputs++ == 0) nested.out = shapes[i].out;
  }
  return nested;
}

// Returns the array, broadcast to the shape.
Array broadcast(const Array& array, const Shape& shape) {
  Array whole(array.dtype(), shape);
  const std::size_t size = size_of(array.dtype());
  std::vector<std::int64_t> strides(shape.size());  // of the array, in elements; 0 in repeated dimensions
  std::int64_t stride = 1;
  for (std::size_t d = array.shape().size(); d-- > 0;) {
    strides[d + shape.size() - array.shape().size()] = array.shape()[d] == 1 ? 0 : stride;
    stride *= array.shape()[d];
  }
  std::vector<std::int64_t> index(shape.size());
  std::int64_t from = 0;
  for (std::int64_t to = 0; to < whole.count(); ++to) {
    std::ranges::copy(array.bytes().subspan(static_cast<std::size_t>(from) * size, size),
                      whole.writable_bytes().begin() + to * static_cast<std::int64_t>(size));
    for (std::size_t d = shape.size(); d-- > 0;) {
      from += strides[d];
      if (++index[d] < shape[d]) break;
      from -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
  return whole;
}

// Expands parameters of an elementwise node to the shape that they broadcast to, as other readers require.
template <class N>
void broadcast_parameters(N& n, const Node& node, const std::string& name, const std::optional<Shape>& in) {
  // The limit for arrays that are broadcast to the shape of an input.
  constexpr std::int64_t most_elements = std::int64_t{1} << 24;
  Shape shape = parameter_shape(node.kind, name, ShapeRule::tolerant);
  if (in && broadcasts(shape, *in) && count_of(*in) <= most_elements) shape = *in;
  const auto widen = [&](std::string_view field, Array& array) {
    if (array.shape() != shape && !(field == "w_in" && array.count() == 1)) array = broadcast(array, shape);
  };
  N::fields(n, [&]<class T>(std::string_view field, T& value) {
    if constexpr (std::is_same_v<T, Array>) widen(field, value);
    if constexpr (std::is_same_v<T, std::optional<Array>>)
      if (value) widen(field, *value);
  });
}

void fill_in(Graph& graph, const std::string& name, const std::optional<Shape>& arriving) {
  const std::vector<NodeShapes> shapes = Inference(graph, name, ShapeRule::tolerant, nullptr, arriving).infer();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::optional<Shape>& in = shapes[i].in;
    std::visit(
        [&]<class N>(N& n) {
          if constexpr (std::is_same_v<N, Graph>) fill_in(n, in_node(name, graph.nodes[i].name), in);
          if constexpr (is_one_of<N, Scale, Delay, Threshold, I, LI, IF, LIF, CubaLI, CubaLIF>)
            broadcast_parameters(n, graph.nodes[i].node, in_node(name, graph.nodes[i].name), in);
          if (!in) return;
          if constexpr (std::is_same_v<N, Output>) {
            if (!n.shape) n.shape = in;
          }
          if constexpr (std::is_same_v<N, Flatten>) {
            if (!n.input_type) n.input_type = in;
          }
          if constexpr (is_one_of<N, Conv1d, Conv2d>) {
            if (n.input_shape) return;
            n.input_shape.emplace();
            std::copy(in->begin() + 1, in->end(), n.input_shape->begin());
          }
        },
        graph.nodes[i].node.kind);
  }
}

}  // namespace

Shape output_shape(const Node& node, const Shape& in, const std::string& name, ShapeRule rule) {
  return std::visit(
      [&]<class N>(const N& n) -> Shape {
        if constexpr (std::is_same_v<N, Input>) {
          return rule == ShapeRule::strict ? n.shape : in;
        } else if constexpr (std::is_same_v<N, Output>) {
          return rule == ShapeRule::strict && n.shape ? *n.shape : in;
        } else if constexpr (is_one_of<N, Affine, Linear>) {
          if (in != matrix_input(n.weight))
            refuse(name, "weight", "it takes {}, but the input has shape {}", text_of(matrix_input(n.weight)),
                   text_of(in));
          return matrix_output(n.weight);
        } else if constexpr (is_one_of<N, Conv1d, Conv2d>) {
          return conv_output(n, in, name, rule);
        } else if constexpr (is_one_of<N, SumPool2d, AvgPool2d>) {
          return pool_output(n, in, name);
        } else if constexpr (std::is_same_v<N, Flatten>) {
          return flatten_output(n, in, name, rule);
        } else if constexpr (std::is_same_v<N, Graph>) {
          return shapes_of_nested(n, name, rule, nullptr, in).out.value_or(Shape{});
        } else {
          const Shape own = parameter_shape(node.kind, name, rule);
          if (own != in && (rule == ShapeRule::strict || !broadcasts(own, in)))
            refuse(name, "", "its parameters have shape {}, but the input has shape {}", text_of(own), text_of(in));
          return in;
        }
      },
      node.kind);
}

std::vector<NodeShapes> infer_shapes(const Graph& graph, ShapeRule rule, Report* report,
                                     const std::optional<Shape>& arriving) {
  return Inference(graph, "", rule, report, arriving).infer();
}

void fill_in_shapes(Graph& graph) { fill_in(graph, "", {}); }

}  // namespace spikeforge::nir
