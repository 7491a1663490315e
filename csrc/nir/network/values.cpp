#include "csrc/nir/network/values.h"
#include "csrc/nir/error.h"
#include "csrc/nir/network/tensor.h"

#include <ATen/core/List.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

namespace spikeforge::nir {
namespace {

// Returns nested lists with one level per dimension of the strings.
c10::IValue nested(std::span<const std::string> texts, std::span<const std::int64_t> shape) {
  if (shape.empty()) return texts[0];
  c10::impl::GenericList list(c10::AnyType::get());
  const std::size_t inner = texts.size() / static_cast<std::size_t>(std::max<std::int64_t>(shape[0], 1));
  for (std::int64_t i = 0; i < shape[0]; ++i)
    list.push_back(nested(texts.subspan(static_cast<std::size_t>(i) * inner, inner), shape.subspan(1)));
  return list;
}

void collect(const c10::IValue& value, const std::string& place, std::size_t depth, Strings& strings) {
  if (value.isString()) {
    if (depth != strings.shape.size()) throw Error("", place, "expected lists of equal lengths");
    strings.values.push_back(value.toStringRef());
    return;
  }
  if (!value.isList())
    throw Error("", place, fmt::format("expected numbers, text, or lists of text, but it is {}", value.tagKind()));
  const auto list = value.toListRef();
  if (depth == strings.shape.size() && strings.values.empty())
    strings.shape.push_back(static_cast<std::int64_t>(list.size()));
  if (depth >= strings.shape.size() || strings.shape[depth] != static_cast<std::int64_t>(list.size()))
    throw Error("", place, "expected lists of equal lengths");
  for (const c10::IValue& element : list) collect(element, place, depth + 1, strings);
}

Value value_of(const c10::IValue& value, const std::string& place) {
  if (value.isNone()) return Group{};
  if (value.isTensor()) return exact_array(value.toTensor());
  if (value.isBool()) return Array::scalar(value.toBool() ? 1 : 0, DType::boolean);
  if (value.isInt()) return Array::scalar(value.toInt());
  if (value.isDouble()) return Array::scalar(value.toDouble());
  Strings strings;
  collect(value, place, 0, strings);
  return strings;
}

// A value, or a group with access to its members by name and in order.
struct ValueTree {
  std::optional<Value> value;
  std::vector<std::string> names;
  std::unordered_map<std::string, std::unique_ptr<ValueTree>> members;

  ValueTree& member(const std::string& name) {
    const auto [found, is_new] = members.try_emplace(name);
    if (is_new) {
      found->second = std::make_unique<ValueTree>();
      names.push_back(name);
    }
    return *found->second;
  }
  Group group() {
    Group group;
    for (const std::string& name : names) {
      ValueTree& tree = *members.at(name);
      group.members.push_back({name, tree.value ? std::move(*tree.value) : Value(tree.group())});
    }
    return group;
  }
};

void add_values(const Group& group, const std::string& place, c10::impl::GenericDict& values) {
  if (group.empty() && !place.empty()) values.insert(place, c10::IValue());
  for (const Member& member : group.members) {
    const std::string inner = place.empty() ? member.name : place + "/" + member.name;
    if (const auto* array = std::get_if<Array>(&member.value))
      values.insert(inner, shared_tensor(*array));
    else if (const auto* strings = std::get_if<Strings>(&member.value))
      values.insert(inner, nested(strings->values, strings->shape));
    else
      add_values(std::get<Group>(member.value), inner, values);
  }
}

}  // namespace

c10::impl::GenericDict empty_dict() { return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get()); }

c10::impl::GenericDict values_of(const Group& group) {
  c10::impl::GenericDict values = empty_dict();
  add_values(group, "", values);
  return values;
}

Group group_of_values(const c10::impl::GenericDict& values) {
  ValueTree root;
  for (const auto& entry : values) {
    const std::string& place = entry.key().toStringRef();
    ValueTree* tree = &root;
    for (std::size_t start = 0, end = 0; end != std::string::npos; start = end + 1) {
      end = place.find('/', start);
      tree = &tree->member(place.substr(start, end == std::string::npos ? end : end - start));
      if (tree->value) throw Error("", place, "is both a value and a group");
    }
    if (entry.value().isNone()) continue;
    if (!tree->members.empty()) throw Error("", place, "is both a value and a group");
    tree->value = value_of(entry.value(), place);
  }
  return root.group();
}

}  // namespace spikeforge::nir
