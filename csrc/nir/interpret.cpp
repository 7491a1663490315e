#include "csrc/nir/interpret.h"
#include "csrc/nir/refuse.h"
#include "csrc/nir/validate.h"

#include <cmath>
#include <set>

namespace spikeforge::nir {
namespace {

template <class T> struct IsOptional : std::false_type {};
template <class T> struct IsOptional<std::optional<T>> : std::true_type {};

// Returns the former name of a field.
std::string_view old_name(std::string_view field) {
  if (field == "weight") return "weights";     // up to 0.0.5
  if (field == "v_threshold") return "theta";  // 0.0.1
  return {};
}

// Reads the fields of a node from the members of its group.
class FieldReader {
 public:
  FieldReader(const Group& group, const std::string& node) : group_(group), node_(node) {}

  template <class T> void operator()(std::string_view name, T& field) {
    const Member* member = group_.find(name);
    if (!member && !old_name(name).empty()) member = group_.find(old_name(name));
    if (member) seen_.insert(member->name);
    if constexpr (IsOptional<T>::value) {
      if (member) convert(*member, field.emplace());
    } else {
      if (member)
        convert(*member, field);
      else if (!has_default(name))
        refuse(name, "is missing");
    }
  }

  // Returns the members that are not fields.
  std::vector<std::string> unknown() const {
    std::vector<std::string> names;
    for (const Member& member : group_.members)
      if (!seen_.contains(member.name) && member.name != "type" && member.name != "metadata")
        names.push_back(member.name);
    return names;
  }

 private:
  template <class... Arguments>
  [[noreturn]] void refuse(std::string_view field, fmt::format_string<Arguments...> reason,
                           Arguments&&... arguments) const {
    nir::refuse(node_, field, reason, std::forward<Arguments>(arguments)...);
  }

  static bool has_default(std::string_view field) { return field == "start_dim" || field == "end_dim"; }

  const Array& array(const Member& member) const {
    if (const Array* numbers = std::get_if<Array>(&member.value)) return *numbers;
    const bool is_group = std::holds_alternative<Group>(member.value);
    refuse(member.name, "expected numbers, but it is {}", is_group ? "a group" : "text");
  }

  std::int64_t integer(const Member& member, std::int64_t index) const {
    const double value = array(member).at(index);
    if (!(std::fabs(value) <= 0x1p53) || value != std::floor(value))
      refuse(member.name, "expected whole numbers, but {} is in it", value);
    return static_cast<std::int64_t>(value);
  }

  void convert(const Member& member, Array& field) const { field = array(member); }

  void convert(const Member& member, Shape& field) const {
    const Array& numbers = array(member);
    if (numbers.shape().size() > 1 || numbers.count() > 64)
      refuse(member.name, "expected a shape, but it has shape {} itself", text_of(numbers.shape()));
    field.clear();
    for (std::int64_t i = 0; i < numbers.count(); ++i) field.push_back(integer(member, i));
  }

  void convert(const Member& member, std::int64_t& field) const {
    const Array& numbers = array(member);
    if (numbers.count() != 1) refuse(member.name, "expected one number, but it has shape {}", text_of(numbers.shape()));
    field = integer(member, 0);
  }

  template <std::size_t D> void convert(const Member& member, std::array<std::int64_t, D>& field) const {
    const Array& numbers = array(member);
    if (numbers.shape().size() > 1 || (numbers.count() != 1 && numbers.count() != static_cast<std::int64_t>(D)))
      refuse(member.name, "expected {}, but it has shape {}",
             D == 1 ? "one number" : fmt::format("one number or {}", D), text_of(numbers.shape()));
    for (std::size_t d = 0; d < D; ++d)
      field[d] = integer(member, numbers.count() == 1 ? 0 : static_cast<std::int64_t>(d));
  }

  template <int D> void convert(const Member& member, Padding<D>& field) const {
    const Strings* text = std::get_if<Strings>(&member.value);
    if (!text) return convert(member, field.numbers);
    if (text->values.size() == 1 && text->values[0] == "same")
      field.mode = PaddingMode::same;
    else if (text->values.size() == 1 && text->values[0] == "valid")
      field.mode = PaddingMode::valid;
    else
      refuse(member.name, "expected numbers, same or valid, but it is {}",
             text->values.empty() ? "empty" : printable(text->values[0]));
  }

  const Group& group_;
  const std::string& node_;
  std::set<std::string_view> seen_;
};

class GraphReader {
 public:
  GraphReader(const Limits& limits, Report& report) : limits_(limits), report_(report) {}

  Node node(const Group& group, const std::string& name) {
    const std::string type = type_of(group, name);
    Node node;
    if (type == "Linear" && group.find("bias"))  // up to 0.0.5
      node.kind = read<Affine>(group, name);
    else
      read_type<0>(type, group, name, node.kind);
    if (!std::holds_alternative<Graph>(node.kind)) node.metadata = metadata(group, name);
    return node;
  }

  Graph graph(const Group& group, const std::string& name) {
    const std::string shown = name.empty() ? "/" : name;
    if (++depth_ > limits_.depth) refuse(shown, "", "it is nested more than {} levels deep", limits_.depth);
    Graph graph;
    graph.metadata = metadata(group, name);
    const Member* nodes = group.find("nodes");
    if (!nodes) throw Error(shown, "nodes", "is missing");
    const Group* members = std::get_if<Group>(&nodes->value);
    if (!members) throw Error(shown, "nodes", "expected a group, but it is a dataset");
    for (const Member& member : members->members) {
      const std::string inner = in_node(name, member.name);
      const Group* fields = std::get_if<Group>(&member.value);
      if (!fields) throw Error(inner, "", "expected a group, but it is a dataset");
      graph.nodes.push_back({member.name, node(*fields, inner)});
    }
    graph.edges = edges(group, name);
    --depth_;
    return graph;
  }

 private:
  static std::string type_of(const Group& group, const std::string& name) {
    const Member* type = group.find("type");
    if (!type) {
      for (const Member& member : group.members)
        if (const Group* inner = std::get_if<Group>(&member.value); inner && inner->find("type"))
          refuse(name, "type", "is missing, and the group holds {}: a node's name must not hold a slash",
                 printable(member.name));
      throw Error(name, "type", "is missing");
    }
    const Strings* text = std::get_if<Strings>(&type->value);
    if (!text || text->values.size() != 1) throw Error(name, "type", "expected one text");
    return text->values[0];
  }

  template <std::size_t Index>
  void read_type(const std::string& type, const Group& group, const std::string& name, Kind& kind) {
    if constexpr (Index == std::variant_size_v<Kind>) {
      refuse(name, "type", "there is no node of type {}", printable(type));
    } else {
      using N = std::variant_alternative_t<Index, Kind>;
      if (type != N::type) return read_type<Index + 1>(type, group, name, kind);
      if constexpr (std::is_same_v<N, Graph>)
        kind = graph(group, name == "/" ? "" : name);
      else
        kind = read<N>(group, name);
    }
  }

  template <class N> N read(const Group& group, const std::string& name) {
    N node;
    FieldReader reader(group, name);
    N::fields(node, reader);
    for (const std::string& unknown : reader.unknown())
      warn(name, unknown, fmt::format("is not a field of {} and is ignored", N::type));
    return node;
  }

  Group metadata(const Group& group, const std::string& name) const {
    const Member* member = group.find("metadata");
    if (!member) return {};
    if (const Group* content = std::get_if<Group>(&member->value)) return *content;
    throw Error(name.empty() ? "/" : name, "metadata", "expected a group, but it is a dataset");
  }

  static std::vector<Edge> edges(const Group& group, const std::string& graph) {
    const std::string name = graph.empty() ? "/" : graph;
    const Member* member = group.find("edges");
    if (!member) throw Error(name, "edges", "is missing");
    if (std::holds_alternative<Group>(member->value))
      throw Error(name, "edges", "expected a dataset, but it is a group");
    const Array* numbers = std::get_if<Array>(&member->value);
    const Shape& shape = numbers ? numbers->shape() : std::get<Strings>(member->value).shape;
    const bool is_empty = !shape.empty() && shape[0] == 0;  // of any type: h5py writes float64 of shape [0]
    if (is_empty) return {};
    if (shape.size() != 2 || shape[1] != 2)
      refuse(name, "edges", "expected shape [edges, 2], but it is {}", text_of(shape));
    std::vector<Edge> edges;
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      if (numbers) {  // up to 0.0.6: the names of nodes are 0, 1, ...
        const double from = numbers->at(2 * i), to = numbers->at(2 * i + 1);
        if (!(from >= 0 && to >= 0 && from < 1e9 && to < 1e9) || is_floating_point(numbers->dtype()))
          refuse(name, "edges", "expected names, or whole numbers from 0 on, but edge {} is {} -> {}", i, from, to);
        edges.push_back(
            {std::to_string(static_cast<std::int64_t>(from)), std::to_string(static_cast<std::int64_t>(to))});
      } else {
        const std::vector<std::string>& names = std::get<Strings>(member->value).values;
        edges.push_back({names[static_cast<std::size_t>(2 * i)], names[static_cast<std::size_t>(2 * i + 1)]});
      }
    }
    return edges;
  }

  void warn(const std::string& node, const std::string& field, const std::string& what) {
    report_.warn(Error(node, field, what).what());
  }

  const Limits& limits_;
  Report& report_;
  int depth_ = 0;
};

// Converts one field to its form in a file.
struct FieldWriter {
  Group& group;

  void add(std::string_view name, Value value) { group.members.push_back({std::string(name), std::move(value)}); }

  void operator()(std::string_view name, const Array& field) { add(name, field); }
  void operator()(std::string_view name, const Shape& field) { add(name, Array::integers(field)); }
  void operator()(std::string_view name, std::int64_t field) { add(name, Array::scalar(field)); }
  template <std::size_t D> void operator()(std::string_view name, const std::array<std::int64_t, D>& field) {
    if constexpr (D == 1)
      (*this)(name, field[0]);
    else
      add(name, Array::integers(field));
  }
  template <int D> void operator()(std::string_view name, const Padding<D>& field) {
    if (field.mode == PaddingMode::numbers) return (*this)(name, field.numbers);
    add(name, Strings::one(field.mode == PaddingMode::same ? "same" : "valid"));
  }
  template <class T> void operator()(std::string_view name, const std::optional<T>& field) {
    if (field) (*this)(name, *field);
  }
};

Value edges_value(const std::vector<Edge>& edges) {
  if (edges.empty()) return Array(DType::float64, {0});  // as in the nir package
  Strings strings{{static_cast<std::int64_t>(edges.size()), 2}, {}};
  for (const Edge& edge : edges) {
    strings.values.push_back(edge.from);
    strings.values.push_back(edge.to);
  }
  return strings;
}

Group node_group(const Node& node);

Group graph_group(const Graph& graph) {
  Group group, nodes;
  for (const NamedNode& node : graph.nodes) nodes.members.push_back({node.name, node_group(node.node)});
  group.members.push_back({"type", Strings::one(std::string(Graph::type))});
  group.members.push_back({"nodes", std::move(nodes)});
  group.members.push_back({"edges", edges_value(graph.edges)});
  if (!graph.metadata.empty()) group.members.push_back({"metadata", graph.metadata});
  return group;
}

Group node_group(const Node& node) {
  return std::visit(
      [&]<class N>(const N& n) {
        if constexpr (std::is_same_v<N, Graph>) {
          return graph_group(n);
        } else {
          Group group;
          group.members.push_back({"type", Strings::one(std::string(N::type))});
          N::fields(n, FieldWriter{group});
          if (!node.metadata.empty()) group.members.push_back({"metadata", node.metadata});
          return group;
        }
      },
      node.kind);
}

}  // namespace

void Report::warn(const std::string& text) {
  constexpr std::size_t most = 100;  // an untrusted file may cause millions
  if (warnings.size() == most) warnings.emplace_back("there are more warnings");
  if (warnings.size() < most) warnings.push_back(text);
}

Graph graph_of(const Group& file, const Limits& limits, Report& report, Soundness soundness) {
  if (const Member* version = file.find("version"))
    if (const Strings* text = std::get_if<Strings>(&version->value); text && text->values.size() == 1)
      report.version = text->values[0];

  GraphReader reader(limits, report);
  Graph graph;
  if (const Member* member = file.find("node")) {
    const Group* root = std::get_if<Group>(&member->value);
    if (!root) throw Error("/", "node", "expected a group, but it is a dataset");
    Node node = reader.node(*root, "/");
    if (Graph* whole = std::get_if<Graph>(&node.kind)) {
      graph = std::move(*whole);
    } else {
      report.warn(fmt::format("the file holds a single {} and no graph", node.type()));
      graph.nodes.push_back({"node", std::move(node)});
    }
  } else if (file.find("nodes") && file.find("edges")) {
    graph = reader.graph(file, "");  // up to 0.0.5
  } else if (file.find("nodes")) {
    throw Error("/", "edges",
                "is missing; is this NIRGraphData, which holds recordings and no graph? info --data shows it");
  } else {
    throw Error("/", "node", "is missing: this HDF5 file holds no NIR graph");
  }
  try {
    validate(graph, limits, &report);
  } catch (const Error& error) {
    if (soundness == Soundness::required) throw;
    report.defect = error.what();
  }
  return graph;
}

Group group_of(const Graph& graph) {
  Group file;
  file.members.push_back({"version", Strings::one(std::string(written_version()))});
  file.members.push_back({"node", graph_group(graph)});
  return file;
}

std::string_view written_version() { return "1.0.8"; }

}  // namespace spikeforge::nir
