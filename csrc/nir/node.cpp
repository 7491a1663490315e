#include "csrc/nir/node.h"

#include <algorithm>
#include <map>

namespace spikeforge::nir {
namespace {

template <class N> bool equal_fields(const N& a, const N& b) {
  bool equal = true;
  // Visits the fields of b in the same order.
  std::vector<const void*> others;
  N::fields(b, [&](std::string_view, const auto& value) { others.push_back(&value); });
  auto other = others.begin();
  N::fields(a, [&]<class T>(std::string_view, const T& value) {
    equal = equal && value == *static_cast<const T*>(*other++);
  });
  return equal;
}

bool equal_metadata(const Group& a, const Group& b) {
  if (a.members.size() != b.members.size()) return false;
  return std::ranges::all_of(a.members, [&](const Member& member) {
    const Member* other = b.find(member.name);
    if (!other || member.value.index() != other->value.index()) return false;
    if (const Group* group = std::get_if<Group>(&member.value))
      return equal_metadata(*group, std::get<Group>(other->value));
    return member.value == other->value;
  });
}

template <std::size_t... I> Kind kind_named(std::string_view type, std::index_sequence<I...>) {
  Kind kind;
  ((std::variant_alternative_t<I, Kind>::type == type ? void(kind = std::variant_alternative_t<I, Kind>()) : void()),
   ...);
  return kind;
}

}  // namespace

const NamedNode* Graph::find(std::string_view name) const {
  const auto found = std::ranges::find(nodes, name, &NamedNode::name);
  return found == nodes.end() ? nullptr : &*found;
}

bool operator==(const Node& a, const Node& b) {
  if (a.kind.index() != b.kind.index() || !equal_metadata(a.metadata, b.metadata)) return false;
  return std::visit(
      [&]<class N>(const N& n) {
        if constexpr (std::is_same_v<N, Graph>)
          return n == std::get<N>(b.kind);
        else
          return equal_fields(n, std::get<N>(b.kind));
      },
      a.kind);
}

bool operator==(const Graph& a, const Graph& b) {
  if (a.nodes.size() != b.nodes.size() || a.edges != b.edges || !equal_metadata(a.metadata, b.metadata)) return false;
  std::map<std::string_view, const Node*> others;
  for (const NamedNode& node : b.nodes) others.emplace(node.name, &node.node);
  return std::ranges::all_of(a.nodes, [&](const NamedNode& node) {
    const auto other = others.find(node.name);
    return other != others.end() && node.node == *other->second;
  });
}

Kind kind_named(std::string_view type) {
  return kind_named(type, std::make_index_sequence<std::variant_size_v<Kind>>());
}

}  // namespace spikeforge::nir
