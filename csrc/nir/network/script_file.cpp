#include "csrc/nir/network/script_file.h"
#include "csrc/base/byte_cursor.h"
#include "csrc/nir/array.h"
#include "csrc/nir/byte_source.h"
#include "csrc/nir/error.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/custom_class.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace spikeforge::nir {
namespace {

[[noreturn]] void fail(const std::string& reason) { throw std::runtime_error(reason); }

// --- The archive: a zip file (APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3), of which torch packs nothing but code.

[[noreturn]] void cut_short() { fail("is damaged: something in it is cut short"); }
using Cursor = ByteCursor<cut_short>;

void expect(Cursor& cursor, std::string_view mark) {
  if (!cursor.takes(mark)) fail("is damaged: its directory leads nowhere");
}

class ZipFile {
 public:
  ZipFile(const ByteSource& source, std::uint64_t most_bytes) : source_(source) {
    const auto [count, offset, size] = find_directory();
    if (size > most_bytes) fail("has a directory beyond the limit of memory");
    const std::string directory = bytes(offset, size);
    Cursor cursor(directory);
    for (std::uint64_t i = 0; i < count; ++i) {
      auto [name, entry] = read_entry(cursor);
      if (!entries_.emplace(std::move(name), entry).second) fail("is damaged: two of its entries have one name");
    }
    // All are in one folder, whose name says nothing.
    const auto is_root = [](const std::string& name) {
      return name.ends_with("/data.pkl") && std::count(name.begin(), name.end(), '/') == 1;
    };
    for (const auto& [name, entry] : entries_)
      if (is_root(name)) folder_ = name.substr(0, name.find('/') + 1);
    if (folder_.empty() || !entries_.contains(folder_ + "constants.pkl")) fail("is no TorchScript file");
  }

  std::uint64_t size_of(const std::string& name) const { return entry(name).size; }

  // As many bytes as size_of says.
  void read(const std::string& name, void* into) const {
    const Entry& entry = this->entry(name);
    if (entry.is_packed) fail(fmt::format("has packed {}, which torch does not", printable(name)));
    constexpr std::size_t fixed = 30;
    const std::string local = bytes(entry.offset, fixed);
    Cursor cursor(local);
    expect(cursor, "PK\3\4");
    cursor.text(22);
    const std::uint64_t names = cursor.number(2), start = entry.offset + fixed + names + cursor.number(2);
    const std::span<std::byte> all(static_cast<std::byte*>(into), entry.size);
    if (!source_.read(start, all)) fail(fmt::format("is cut short: {} ends beyond it", printable(name)));
    const auto* data = static_cast<const Bytef*>(into);
    if (::crc32_z(::crc32_z(0, nullptr, 0), data, entry.size) != entry.checksum)
      fail(fmt::format("is damaged: the checksum of {} is wrong", printable(name)));
  }

 private:
  struct Entry {
    std::uint64_t offset, size;
    std::uint32_t checksum;
    bool is_packed;
  };
  struct Directory {
    std::uint64_t count, offset, size;
  };

  std::string bytes(std::uint64_t offset, std::uint64_t size) const {
    if (offset > source_.size() || size > source_.size() - offset) fail("is damaged: it ends before its directory");
    std::string all(size, '\0');
    if (!source_.read(offset, std::as_writable_bytes(std::span(all)))) fail("cannot be read");
    return all;
  }

  Directory find_directory() const {
    constexpr std::size_t least = 22, longest_comment = 0xffff, end64 = 56;
    const std::uint64_t tail = std::min<std::uint64_t>(source_.size(), least + longest_comment + end64 + 20);
    const std::string last = bytes(source_.size() - tail, tail);
    const std::size_t end = last.rfind("PK\5\6");
    if (end == std::string::npos) fail("is no TorchScript file");
    Cursor cursor(std::string_view(last).substr(end + 10));
    Directory directory{};
    directory.count = cursor.number(2);
    directory.size = cursor.number(4);
    directory.offset = cursor.number(4);
    if (directory.count != 0xffff && directory.size != 0xffffffff && directory.offset != 0xffffffff) return directory;
    const std::size_t large = last.rfind("PK\6\6", end);  // the numbers are too large for the first form
    if (large == std::string::npos) fail("is damaged: its directory leads nowhere");
    Cursor wide(std::string_view(last).substr(large + 32));
    directory.count = wide.number(8);
    directory.size = wide.number(8);
    directory.offset = wide.number(8);
    return directory;
  }

  static std::pair<std::string, Entry> read_entry(Cursor& cursor) {
    expect(cursor, "PK\1\2");
    cursor.text(6);
    const std::uint64_t method = cursor.number(2);
    cursor.text(4);
    Entry entry{};
    entry.checksum = static_cast<std::uint32_t>(cursor.number(4));
    std::uint64_t stored = cursor.number(4);
    entry.size = cursor.number(4);
    const std::uint64_t name = cursor.number(2), extra = cursor.number(2), comment = cursor.number(2);
    cursor.text(8);
    entry.offset = cursor.number(4);
    std::string own_name(cursor.text(name));
    Cursor fields(cursor.text(extra));
    while (!fields.is_at_end()) {
      const std::uint64_t id = fields.number(2);
      Cursor field(fields.text(fields.number(2)));
      if (id != 1) continue;
      for (std::uint64_t* number : {&entry.size, &stored, &entry.offset})  // those that are too large, in this order
        if (*number == 0xffffffff) *number = field.number(8);
    }
    cursor.text(comment);
    entry.is_packed = method != 0 || stored != entry.size;
    return {std::move(own_name), entry};
  }

  const Entry& entry(const std::string& name) const {
    const auto found = entries_.find(folder_ + name);
    if (found == entries_.end()) fail(fmt::format("is damaged: it has no {}", printable(name)));
    return found->second;
  }

  const ByteSource& source_;
  std::map<std::string, Entry> entries_;
  std::string folder_;
};

// --- The objects: a pickle of the instructions that torch writes. torch's own unpickler gives a file whatever memory
// it asks for, and calls __setstate__ where a class has one.

// What a pickle calls a global: a class or a function.
struct Global : torch::CustomClassHolder {
  explicit Global(std::string name) : name(std::move(name)) {}
  std::string name;
};

struct Storage : torch::CustomClassHolder {
  c10::DataPtr data;
  std::uint64_t size = 0;
};

// A storage as numbers of a type.
struct Numbers : torch::CustomClassHolder {
  c10::intrusive_ptr<Storage> storage;
  c10::ScalarType type = c10::kFloat;
};

template <class T>
c10::intrusive_ptr<T> as(const c10::IValue& value) {
  return value.isCapsule() ? c10::dynamic_intrusive_pointer_cast<T>(value.toCapsule()) : nullptr;
}

c10::ScalarType type_of_storage(const std::string& name) {
  static const std::map<std::string, c10::ScalarType> types = {
      {"torch.DoubleStorage", c10::kDouble},     {"torch.FloatStorage", c10::kFloat}, {"torch.HalfStorage", c10::kHalf},
      {"torch.BFloat16Storage", c10::kBFloat16}, {"torch.ByteStorage", c10::kByte},   {"torch.CharStorage", c10::kChar},
      {"torch.ShortStorage", c10::kShort},       {"torch.IntStorage", c10::kInt},     {"torch.LongStorage", c10::kLong},
      {"torch.BoolStorage", c10::kBool}};
  const auto found = types.find(name);
  if (found == types.end()) fail(fmt::format("has tensors of an unexpected kind, {}", printable(name)));
  return found->second;
}

class ScriptReader {
 public:
  ScriptReader(const ByteSource& source, const Limits& limits)
      // What is read of a directory or a pickle takes many times as much memory.
      : zip_(source, limits.bytes / 16), bytes_left_(limits.bytes), most_depth_(4 * limits.depth + 16) {
    if (zip_.size_of("data.pkl") > limits.bytes / 16) fail("is beyond the limit of memory");
    pickle_.resize(zip_.size_of("data.pkl"));
    zip_.read("data.pkl", pickle_.data());
  }

  c10::intrusive_ptr<c10::ivalue::Object> read() {
    Cursor cursor(pickle_);
    while (follow(static_cast<unsigned char>(cursor.text(1)[0]), cursor)) {
    }
    const c10::IValue root = pop();
    if (!root.isObject()) fail("holds no module");
    return root.toObject();
  }

 private:
  // One instruction; false at the end.
  bool follow(unsigned char code, Cursor& cursor) {
    switch (code) {
      case 0x80:  // PROTO
        cursor.text(1);
        break;
      case '.':
        return false;
      case '(':
        marks_.push_back(stack_.size());
        break;
      case 'N':
        push({});
        break;
      case 0x88:
        push(true);
        break;
      case 0x89:
        push(false);
        break;
      case 'K':
        push(static_cast<std::int64_t>(cursor.number(1)));
        break;
      case 'M':
        push(static_cast<std::int64_t>(cursor.number(2)));
        break;
      case 'J':
        push(static_cast<std::int64_t>(static_cast<std::int32_t>(cursor.number(4))));
        break;
      case 0x8a:  // LONG1
        if (cursor.number(1) != 8) refuse();
        push(static_cast<std::int64_t>(cursor.number(8)));
        break;
      case 'G': {  // the highest byte first
        std::uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits = bits << 8 | cursor.number(1);
        push(std::bit_cast<double>(bits));
        break;
      }
      case 'X': {
        const std::string_view text = cursor.text(cursor.number(4));
        take_memory(of_text + text.size());
        push(std::string(text));
        break;
      }
      case 'c': {
        const std::string_view module = cursor.line();
        take_memory(of_text + 2 * module.size());
        push(c10::IValue::make_capsule(c10::make_intrusive<Global>(fmt::format("{}.{}", module, cursor.line()))));
        break;
      }
      case 'q':
        remember(cursor.number(1));
        break;
      case 'r':
        remember(cursor.number(4));
        break;
      case 'h':
        recall(cursor.number(1));
        break;
      case 'j':
        recall(cursor.number(4));
        break;
      case ')':
        push(tuple({}));
        break;
      case 't':
        push(tuple(pop_to_mark()));
        break;
      case 0x85:  // TUPLE1, 2, 3
      case 0x86:
      case 0x87: {
        std::vector<c10::IValue> elements(code - 0x84);
        for (std::size_t i = elements.size(); i-- > 0;) elements[i] = pop();
        push(tuple(elements));
        break;
      }
      case ']':
        take_memory(of_list);
        push(c10::impl::GenericList(c10::AnyType::get()));
        break;
      case 'a':
        append({pop()});
        break;
      case 'e':
        append(pop_to_mark());
        break;
      case '}':
        take_memory(of_dict);
        push(c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get()));
        break;
      case 's': {
        const c10::IValue value = pop(), key = pop();
        set_items({key, value});
        break;
      }
      case 'u':
        set_items(pop_to_mark());
        break;
      case 0x81:  // NEWOBJ
        pop();
        if (!name_of_global(pop()).starts_with("__torch__.")) refuse();
        take_memory(of_object);
        push(c10::ivalue::Object::create({unit_, c10::ClassType::create(c10::QualifiedName("__torch__.Data"), unit_)},
                                         0));
        break;
      case 'b':
        set_attributes(pop());
        break;
      case 'Q':  // ("storage", torch.FloatStorage, "7", "cpu", 12)
        push(storage(pop()));
        break;
      case 'R': {
        const c10::IValue arguments = pop();
        take_memory(of_tensor);
        push(call(name_of_global(pop()), elements(arguments)));
        break;
      }
      default:
        refuse();
    }
    return true;
  }

  [[noreturn]] static void refuse() { fail("is damaged: its data.pkl is not what torch writes"); }

  // What torch's values take, rounded up; beside those of a directory and of a pickle, of which each instruction leaves
  // at most one value on the stack and one in the memo.
  static constexpr std::uint64_t of_element = 32, of_text = 128, of_tuple = 256, of_list = 256, of_item = 128,
                                 of_dict = 512, of_tensor = 1024, of_attribute = 256, of_object = 2048;
  void take_memory(std::uint64_t bytes) {
    if (bytes > bytes_left_) fail("is beyond the limit of memory");
    bytes_left_ -= bytes;
  }

  c10::IValue tuple(const std::vector<c10::IValue>& elements) {
    take_memory(of_tuple + elements.size() * of_element);
    c10::IValue value = c10::ivalue::Tuple::create(elements);
    close(value, elements);
    return value;
  }
  static c10::ArrayRef<c10::IValue> elements(const c10::IValue& tuple) {
    if (!tuple.isTuple()) refuse();
    return tuple.toTupleRef().elements().asArrayRef();
  }
  static std::string name_of_global(const c10::IValue& value) {
    const auto global = as<Global>(value);
    if (!global) refuse();
    return global->name;
  }

  void push(c10::IValue value) {
    take_memory(of_element);
    stack_.push_back(std::move(value));
  }
  c10::IValue& top() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse();
    return stack_.back();
  }
  c10::IValue pop() {
    c10::IValue value = std::move(top());
    stack_.pop_back();
    return value;
  }
  std::vector<c10::IValue> pop_to_mark() {
    if (marks_.empty()) refuse();
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<c10::IValue> values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  void remember(std::uint64_t place) {
    take_memory(of_item);
    memo_[place] = top();
  }
  void recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse();
    push(found->second);
  }

  // What holds others is filled once, and not after it became part of another: so there are no cycles, and the depth is
  // known. Whoever destroys values of any depth runs out of stack.
  void close(const c10::IValue& holder, at::ArrayRef<c10::IValue> values) {
    if (depths_.contains(holder.internalToPointer())) refuse();
    int depth = 0;
    for (const c10::IValue& value : values) {
      if (!value.isList() && !value.isGenericDict() && !value.isObject() && !value.isTuple()) continue;
      kept_.push_back(value);
      depth = std::max(depth, depths_.try_emplace(value.internalToPointer(), 1).first->second);
    }
    if (depth > most_depth_) fail("is nested too deep");
    kept_.push_back(holder);  // its address stays its own
    depths_.emplace(holder.internalToPointer(), depth + 1);
  }

  void append(const std::vector<c10::IValue>& values) {
    if (!top().isList()) refuse();
    take_memory(values.size() * of_element);
    close(top(), values);
    auto list = top().toList();
    for (const c10::IValue& value : values) list.push_back(value);
  }
  void set_items(const std::vector<c10::IValue>& items) {
    if (!top().isGenericDict() || items.size() % 2 != 0) refuse();
    take_memory(items.size() * of_item);
    close(top(), items);
    auto dict = top().toGenericDict();
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].isString()) refuse();
      dict.insert_or_assign(items[i], items[i + 1]);
    }
  }
  void set_attributes(const c10::IValue& attributes) {
    if (!top().isObject()) refuse();
    close(top(), attributes);
    if (!attributes.isGenericDict()) return;  // what __getstate__ of a class gave: a state that is not kept
    const auto object = top().toObject();
    for (const auto& item : attributes.toGenericDict()) {
      const std::string& name = item.key().toStringRef();
      if (object->type()->hasAttribute(name)) refuse();
      take_memory(of_attribute + name.size());
      object->setSlot(object->type()->addAttribute(name, c10::AnyType::get()), item.value());
    }
  }

  // Several tensors may share one.
  c10::IValue storage(const c10::IValue& id) {
    const auto parts = elements(id);
    if (parts.size() != 5 || !parts[2].isString()) refuse();
    const std::string& key = parts[2].toStringRef();
    auto numbers = c10::make_intrusive<Numbers>();
    numbers->type = type_of_storage(name_of_global(parts[1]));
    numbers->storage = storages_[key];
    if (!numbers->storage) {
      auto storage = c10::make_intrusive<Storage>();
      storage->size = zip_.size_of("data/" + key);
      take_memory(of_object + storage->size);
      storage->data = c10::GetCPUAllocator()->allocate(storage->size);
      zip_.read("data/" + key, storage->data.get());
      numbers->storage = storages_[key] = storage;
    }
    return c10::IValue::make_capsule(numbers);
  }

  // What torch has a pickle call. Lists keep their elements, whatever type they are said to have; of what no graph
  // needs, nothing is made.
  static c10::IValue call(const std::string& function, c10::ArrayRef<c10::IValue> arguments) {
    if (function == "torch._utils._rebuild_tensor_v2") return tensor(arguments);
    if (function == "torch._utils._rebuild_parameter" || function.starts_with("torch.jit._pickle.")) {
      if (arguments.empty()) refuse();
      return arguments[0];
    }
    return {};
  }

  // A file says how large a tensor is; that many bytes must be there.
  static at::Tensor tensor(c10::ArrayRef<c10::IValue> arguments) {
    const auto numbers = arguments.size() >= 4 ? as<Numbers>(arguments[0]) : nullptr;
    if (!numbers || !arguments[1].isInt()) refuse();
    const Shape sizes = whole_numbers(arguments[2]), strides = whole_numbers(arguments[3]);
    const c10::TensorOptions options(numbers->type);
    if (sizes.size() != strides.size()) refuse();
    if (count_of(sizes) == 0) return at::empty(sizes, options);
    const std::int64_t first = arguments[1].toInt();
    std::int64_t last = first;
    bool is_too_far = first < 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      std::int64_t span = 0;
      is_too_far |= strides[d] < 0 || __builtin_mul_overflow(sizes[d] - 1, strides[d], &span) ||
                    __builtin_add_overflow(last, span, &last);
    }
    const auto size = static_cast<std::uint64_t>(c10::elementSize(numbers->type));
    if (is_too_far || static_cast<std::uint64_t>(last) >= numbers->storage->size / size)
      fail("is damaged: a tensor is larger than what is stored of it");
    auto* const data = static_cast<std::byte*>(numbers->storage->data.get()) + static_cast<std::uint64_t>(first) * size;
    return at::from_blob(
        data, sizes, strides, [keep = numbers->storage](void*) {}, options);
  }

  static Shape whole_numbers(const c10::IValue& tuple) {
    Shape numbers;
    for (const c10::IValue& value : elements(tuple)) {
      if (!value.isInt()) refuse();
      numbers.push_back(value.toInt());
    }
    return numbers;
  }

  ZipFile zip_;
  std::uint64_t bytes_left_;
  int most_depth_;
  std::string pickle_;
  std::vector<c10::IValue> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, c10::IValue> memo_;
  std::unordered_map<const void*, int> depths_;
  std::vector<c10::IValue> kept_;
  std::unordered_map<std::string, c10::intrusive_ptr<Storage>> storages_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
};

}  // namespace

c10::intrusive_ptr<c10::ivalue::Object> read_script_file(const std::string& file, const Limits& limits) {
  const ByteSource source = ByteSource::open(file);
  return ScriptReader(source, limits).read();
}

}  // namespace spikeforge::nir
