#include "csrc/nir/network/graph_table.h"
#include "csrc/nir/array_values.h"
#include "csrc/nir/error.h"
#include "csrc/nir/network/cell.h"
#include "csrc/nir/network/node_modules.h"
#include "csrc/nir/network/tensor.h"
#include "csrc/nir/network/to_module.h"
#include "csrc/nn/script.h"
#include "ops/common/plain.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>

namespace spikeforge::nir {
namespace {

constexpr std::string_view notes_path = "/metadata/spikeforge";
constexpr const char* text_type = "text";
constexpr const char* group_type = "group";

struct Row {
  std::string path, type;
  Shape shape = {};
  std::vector<std::string> texts = {};
  at::Tensor bytes = at::empty({0}, c10::kByte);
};

at::Tensor byte_tensor(std::span<const std::byte> bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, c10::kByte);
  std::ranges::copy(bytes, static_cast<std::byte*>(tensor.mutable_data_ptr()));
  return tensor;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::string checksum(const at::Tensor& tensor) {
  const at::Tensor values = ops::plain(tensor.detach().to(c10::kCPU));
  return fmt::format("{:016x}", XXH3_64bits(values.const_data_ptr(), values.nbytes()));
}

// --- differences between the file's values and the module's rounded ones

// One element, if all have the same bytes.
at::Tensor whole(const Array& array) {
  const std::span<const std::byte> bytes = array.bytes();
  const std::size_t size = size_of(array.dtype());
  const bool is_uniform =
      bytes.size() >= size && std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(size), bytes.end(), bytes.begin());
  return byte_tensor(is_uniform ? bytes.first(size) : bytes);
}

Array from_whole(const Row& row, DType dtype) {
  Array array(dtype, row.shape);
  const std::span<std::byte> all = array.writable_bytes();
  const std::span<const std::byte> bytes = bytes_of(row.bytes);
  if (bytes.size() == all.size()) {
    std::ranges::copy(bytes, all.begin());
  } else {
    if (bytes.size() != size_of(dtype)) throw std::runtime_error("its bytes are not those of its shape");
    for (std::size_t i = 0; i < all.size(); i += bytes.size()) std::ranges::copy(bytes, all.begin() + i);
  }
  if (dtype == DType::boolean)
    for (std::byte& byte : all) byte = std::byte{byte != std::byte{0}};
  return array;
}

// Doubles that became floats: how far apart the bits of both are as doubles, which 4 bytes hold. Undefined where they
// do not.
at::Tensor rest(const Array& array, const at::Tensor& rounded) {
  if (array.dtype() != DType::float64 || rounded.scalar_type() != c10::kFloat) return {};
  const std::span<const double> exact = values_of<double>(array);
  at::Tensor differences = at::empty({array.count()}, c10::kInt);
  const float* const values = rounded.const_data_ptr<float>();
  for (std::int64_t i = 0; i < array.count(); ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(exact[i]) - std::bit_cast<std::uint64_t>(double{values[i]});
    const auto difference = static_cast<std::int32_t>(bits);
    if (static_cast<std::uint64_t>(std::int64_t{difference}) != bits) return {};
    differences.mutable_data_ptr<std::int32_t>()[i] = difference;
  }
  return byte_tensor(bytes_of(differences));
}

Array from_rest(const Row& row, const at::Tensor& rounded) {
  const std::span<const std::byte> bytes = bytes_of(row.bytes);
  Array array(DType::float64, row.shape);
  if (rounded.scalar_type() != c10::kFloat || bytes.size() != array.byte_count() / 2)
    throw std::runtime_error("its bytes are not those of its shape");
  const std::span<double> values = writable_values_of<double>(array);
  const float* const from = rounded.const_data_ptr<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int32_t difference = 0;
    std::memcpy(&difference, bytes.data() + i * sizeof difference, sizeof difference);
    values[i] = std::bit_cast<double>(std::bit_cast<std::uint64_t>(double{from[i]}) + std::int64_t{difference});
  }
  return array;
}

// --- Writing

class TableWriter {
 public:
  TableWriter(const Graph& graph, const nn::CompositeImpl& network) {
    find_tensors(graph, network, "node", "");
    add_members(group_of(graph), "");
  }

  std::vector<Row> rows() { return std::move(rows_); }

 private:
  struct Place {
    std::string name;  // in the script
    at::Tensor tensor;
  };

  // The fields that are the module's tensors: of neurons under their names, of layers somewhere below. Neurons that
  // were restored from metadata have those of their metadata.
  void find_tensors(const Graph& graph, const nn::CompositeImpl& network, const std::string& path,
                    const std::string& prefix) {
    const std::vector<std::string> names = module_names(graph);
    const auto parts = network.named_children();
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const auto* const part = parts.find(names[i]);
      if (!part) continue;  // a port
      const Node& node = graph.nodes[i].node;
      const std::string inner = path + "/nodes/" + graph.nodes[i].name;
      const std::string own = prefix + script::attribute(names[i]) + ".";
      if (const Graph* nested = std::get_if<Graph>(&node.kind)) {
        find_tensors(*nested, dynamic_cast<const nn::CompositeImpl&>(**part), inner, own);
        continue;
      }
      const bool is_neuron = cell_of(node.kind, CellOptions{1}).has_value();
      const bool is_restored = is_neuron && !dynamic_cast<const NodeNeuronImpl*>(part->get());
      const std::string fields = inner + (is_restored ? std::string(notes_path) : "") + "/";
      for (const auto& tensors : {(*part)->named_parameters(), (*part)->named_buffers()})
        for (const auto& item : tensors) {
          const std::string& key = item.key();
          places_[fields + key.substr(key.rfind('.') + 1)] = {own + in_script(key), item.value()};
        }
    }
  }

  static std::string in_script(const std::string& key) {
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos) return script::attribute(key);
    return script::attribute(key.substr(0, dot)) + "." + in_script(key.substr(dot + 1));
  }

  void add_members(const Group& group, const std::string& path) {
    for (const Member& member : group.members) {
      const std::string inner = (path.empty() ? "" : path + "/") + member.name;
      std::visit([&](const auto& value) { add(value, inner); }, member.value);
    }
  }
  void add(const Group& group, const std::string& path) {
    if (group.empty()) rows_.push_back({path, group_type});
    add_members(group, path);
  }
  void add(const Strings& strings, const std::string& path) {
    rows_.push_back({path, text_type, strings.shape, strings.values});
  }
  void add(const Array& array, const std::string& path) {
    Row row{path, std::string(name_of(array.dtype())), array.shape()};
    const auto place = places_.find(path);
    const bool is_one_bias = place != places_.end() && path.ends_with("/bias") && array.count() == 1;
    if (place == places_.end() || (place->second.tensor.sizes() != array.shape() && !is_one_bias)) {
      row.bytes = whole(array);
    } else {
      const at::Tensor& tensor = place->second.tensor;
      row.texts = {place->second.name};
      if (!(array_as(is_one_bias ? tensor.flatten()[0].reshape(array.shape()) : tensor, array.dtype()) == array)) {
        const at::Tensor values = ops::plain(tensor.detach().to(c10::kCPU));
        at::Tensor bytes = whole(array), differences;
        if (!is_one_bias && bytes.nbytes() > array.byte_count() / 2) differences = rest(array, values);
        row.texts.insert(row.texts.end(), {checksum(values), differences.defined() ? "rest" : "whole"});
        row.bytes = differences.defined() ? differences : bytes;
      }
    }
    rows_.push_back(std::move(row));
  }

  std::map<std::string, Place> places_;
  std::vector<Row> rows_;
};

// --- Reading

// A group with access to members by name.
struct Tree {
  std::map<std::string, std::variant<Value, std::unique_ptr<Tree>>, std::less<>> members;

  Group group() {
    Group result;
    for (auto& [name, member] : members) {
      if (auto* inner = std::get_if<std::unique_ptr<Tree>>(&member))
        result.members.push_back({name, (*inner)->group()});
      else
        result.members.push_back({name, std::move(std::get<Value>(member))});
    }
    return result;
  }
};

// node/nodes/a/nodes/b/tau is field tau of node a/b.
Error at_path(std::string_view path, const std::string& reason) {
  std::string node;
  const auto take = [&] {
    std::string part(path.substr(0, path.find('/')));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    return part;
  };
  if (path.starts_with("node/")) take();
  while (path.starts_with("nodes/")) {
    take();
    node = in_node(node, take());
  }
  return {node.empty() ? "/" : node, std::string(path), reason};
}

class TableReader {
 public:
  TableReader(const std::function<at::Tensor(const std::string&)>& tensor, const Limits& limits)
      : tensor_(tensor), limits_(limits), bytes_left_(limits.bytes) {}

  TableContents read(const c10::IValue& table) {
    if (!table.isList()) throw Error("", "", "the graph in it is damaged");
    if (table.toListRef().size() > limits_.nodes) throw Error("", "", "it has more groups and datasets than the limit");
    for (const c10::IValue& value : table.toListRef()) {
      const Row row = row_of(value);
      try {
        insert(row);
      } catch (const std::runtime_error& error) {
        throw at_path(row.path, error.what());
      } catch (const c10::Error& error) {
        throw at_path(row.path, error.what_without_backtrace());
      }
    }
    return {root_.group(), std::move(noted_)};
  }

 private:
  static Row row_of(const c10::IValue& value) {
    const auto is_list_of = [](const c10::IValue& list, bool (c10::IValue::*is)() const) {
      return list.isList() && std::ranges::all_of(list.toListRef(), [&](const c10::IValue& v) { return (v.*is)(); });
    };
    const auto fields = value.isTuple() ? value.toTupleRef().elements().asArrayRef() : c10::ArrayRef<c10::IValue>();
    if (fields.size() != 5 || !fields[0].isString() || !fields[1].isString() ||
        !is_list_of(fields[2], &c10::IValue::isInt) || !is_list_of(fields[3], &c10::IValue::isString) ||
        !fields[4].isTensor() || !fields[4].toTensor().defined() || fields[4].toTensor().scalar_type() != c10::kByte)
      throw Error("", "", "the graph in it is damaged");
    Row row{fields[0].toStringRef(), fields[1].toStringRef()};
    for (const c10::IValue& size : fields[2].toListRef()) row.shape.push_back(size.toInt());
    for (const c10::IValue& text : fields[3].toListRef()) row.texts.push_back(text.toStringRef());
    row.bytes = ops::plain(fields[4].toTensor().to(c10::kCPU));
    return row;
  }

  void insert(const Row& row) {
    std::string_view left = row.path;
    Tree* tree = &root_;
    for (int depth = 0;; ++depth) {
      const std::size_t slash = left.find('/');
      const std::string name(left.substr(0, slash));
      const auto refuse = [](const char* reason) { throw std::runtime_error(reason); };
      if (name.empty() || name.size() > limits_.string) refuse("this is not a name");
      if (depth > 2 * limits_.depth + 4) refuse("it is nested too deep");
      const bool is_last = slash == std::string_view::npos;
      if (is_last && row.type != group_type) {
        if (!tree->members.emplace(name, value(row)).second) refuse("two members have this name");
        return;
      }
      auto& member = tree->members.try_emplace(name, std::make_unique<Tree>()).first->second;
      if (!std::holds_alternative<std::unique_ptr<Tree>>(member)) refuse("it is a group and a value");
      if (is_last) return;
      tree = std::get<std::unique_ptr<Tree>>(member).get();
      left.remove_prefix(slash + 1);
    }
  }

  Value value(const Row& row) {
    const auto count = static_cast<std::uint64_t>(count_of(row.shape));
    if (row.type == text_type) {
      if (row.texts.size() != count) throw std::runtime_error("its texts are not those of its shape");
      for (const std::string& text : row.texts) {
        if (text.size() > limits_.string || text.find('\0') != std::string::npos)
          throw std::runtime_error("a text in it is longer than the limit, or holds a zero");
        take(text.size() + sizeof(std::string));
      }
      return Strings{row.shape, row.texts};
    }
    const DType dtype = dtype_named(row.type);
    if (count > std::numeric_limits<std::uint64_t>::max() / sizeof(double)) take(count);
    take(count * size_of(dtype));
    return array(row, dtype);
  }

  Array array(const Row& row, DType dtype) {
    if (row.texts.empty()) return from_whole(row, dtype);
    at::Tensor present = tensor_(row.texts[0]);
    if (!present.defined())
      throw std::runtime_error(
          fmt::format("the module has no tensor {} any more; was it frozen?", printable(row.texts[0])));
    const auto type = present.scalar_type();
    if (present.layout() != c10::kStrided || present.is_quantized() ||
        !(at::isFloatingType(type) || at::isIntegralType(type, true)))
      throw std::runtime_error(fmt::format("the module's {} has no real numbers, one by one", printable(row.texts[0])));
    present = ops::plain(present.detach().to(c10::kCPU));
    const bool is_one_bias = row.path.ends_with("/bias") && count_of(row.shape) == 1 && present.numel() > 0;
    if (present.sizes() != row.shape && !is_one_bias)
      throw std::runtime_error(fmt::format("expected shape {}, but the module's {} has {}", text_of(row.shape),
                                           printable(row.texts[0]), text_of(present.sizes().vec())));
    if (const std::size_t at = row.path.find(notes_path); at != std::string::npos)
      noted_.insert(row.path.substr(0, at));
    if (row.texts.size() == 3 && row.texts[1] == checksum(present))
      return row.texts[2] == "rest" ? from_rest(row, present) : from_whole(row, dtype);
    if (is_one_bias && present.eq(present.flatten()[0]).all().item<bool>())
      present = present.flatten()[0].reshape(row.shape);
    return array_as(present, dtype);
  }

  static DType dtype_named(const std::string& name) {
    for (int i = 0; i <= static_cast<int>(DType::float64); ++i)
      if (name == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
    throw std::runtime_error(fmt::format("there is no type {}", printable(name)));
  }

  void take(std::uint64_t bytes) {
    if (bytes > bytes_left_) throw std::runtime_error("the graph is beyond the limit of memory");
    bytes_left_ -= bytes;
  }

  const std::function<at::Tensor(const std::string&)>& tensor_;
  const Limits& limits_;
  std::uint64_t bytes_left_;
  Tree root_;
  std::set<std::string> noted_;
};

}  // namespace

c10::TypePtr graph_table_type() {
  const c10::TypePtr text = c10::StringType::get();
  return c10::ListType::create(c10::TupleType::create(
      {text, text, c10::ListType::ofInts(), c10::ListType::ofStrings(), c10::TensorType::get()}));
}

c10::IValue graph_table(const Graph& graph, const nn::CompositeImpl& network) {
  c10::impl::GenericList table(graph_table_type()->expectRef<c10::ListType>().getElementType());
  for (Row& row : TableWriter(graph, network).rows())
    table.push_back(c10::ivalue::Tuple::create({std::move(row.path), std::move(row.type), c10::IValue(row.shape),
                                                c10::IValue(row.texts), std::move(row.bytes)}));
  return table;
}

TableContents read_graph_table(const c10::IValue& table, const std::function<at::Tensor(const std::string&)>& tensor,
                               const Limits& limits) {
  return TableReader(tensor, limits).read(table);
}

}  // namespace spikeforge::nir
