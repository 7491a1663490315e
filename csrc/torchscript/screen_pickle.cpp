#include "csrc/torchscript/internal/screen_pickle.h"
#include "csrc/base/printable.h"
#include "csrc/torchscript/internal/archive.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace spikeforge::torchscript {
namespace {

constexpr int most_nested = 256;
constexpr std::size_t most_dimensions = 64, longest_type = 4096;

enum class Kind : std::uint8_t { other, number, text, global, started, object, tuple, list, dict, storage, tensor };

// What is known of a value on torch's stack. A pickle has one for each of its bytes, so it is as small as torch's own.
struct Value {
  Kind kind = Kind::other;
  std::uint16_t depth = 0;  // of a tuple or an object
  std::uint32_t count = 0;  // bytes of a text or a global's name, items of a tuple
  std::int64_t number = 0;  // or where its text or its items begin; which list or dictionary it is; of a storage, how
                            // many elements it is said to have
};
static_assert(sizeof(Value) == 16);
using Values = std::vector<Value>;

[[noreturn]] void strange(const std::string& what) { refuse("its data is not what torch writes: " + what); }

std::uint64_t element_size(const std::string& storage) {
  static const std::unordered_map<std::string, std::uint64_t> sizes = {
      {"torch.DoubleStorage", 8},   {"torch.FloatStorage", 4},        {"torch.HalfStorage", 2},
      {"torch.BFloat16Storage", 2}, {"torch.LongStorage", 8},         {"torch.IntStorage", 4},
      {"torch.ShortStorage", 2},    {"torch.CharStorage", 1},         {"torch.ByteStorage", 1},
      {"torch.BoolStorage", 1},     {"torch.ComplexFloatStorage", 8}, {"torch.ComplexDoubleStorage", 16}};
  const auto found = sizes.find(storage);
  return found == sizes.end() ? 0 : found->second;
}

void check_global(const std::string& name) {
  if (name.starts_with("__torch__.torch.classes.")) refuse("it holds an object of a class that is written in C++");
  static const std::unordered_set<std::string> functions = {"collections.OrderedDict",
                                                            "torch._utils._rebuild_tensor_v2",
                                                            "torch.device",
                                                            "torch.jit._pickle.build_boollist",
                                                            "torch.jit._pickle.build_doublelist",
                                                            "torch.jit._pickle.build_intlist",
                                                            "torch.jit._pickle.build_tensorlist",
                                                            "torch.jit._pickle.restore_type_tag"};
  if (!name.starts_with("__torch__.") && !functions.contains(name) && element_size(name) == 0)
    strange("it calls " + printable(name, Lines::one, 200));
}

class Reader {
 public:
  Reader(std::string_view bytes, const SizeOfStorage& size_of_storage)
      : all_(bytes), bytes_(bytes), size_of_storage_(size_of_storage) {}

  // What is pickled; what it holds, where it is a tuple.
  std::pair<Value, Values> read() {
    if (byte() != 0x80 || byte() != 2) strange("it is of another protocol");
    while (true) {
      const int code = byte();
      if (code == '.') break;
      follow(code);
    }
    if (!bytes_.empty() || stack_.size() != 1 || !marks_.empty()) strange("something is left over at its end");
    const Value root = stack_.back();
    return {root, root.kind == Kind::tuple ? Values(items_of(root).begin(), items_of(root).end()) : Values()};
  }

 private:
  void follow(int code) {
    switch (code) {
      case '(':
        return marks_.push_back(static_cast<std::uint32_t>(stack_.size()));
      case 'N':
      case 0x88:
      case 0x89:
        return push({});
      case 'K':
        return push_number(static_cast<std::int64_t>(little(1)));
      case 'M':
        return push_number(static_cast<std::int64_t>(little(2)));
      case 'J':
        return push_number(static_cast<std::int32_t>(little(4)));
      case 0x8a:
        if (byte() != 8) strange("a number is longer than 8 bytes");
        return push_number(static_cast<std::int64_t>(little(8)));
      case 'G':
        take(8);
        return push({});
      case 'X':
        return push_text(take(little(4)), Kind::text);
      case 'c':
        return push_global();
      case 'q':
        return remember(little(1));
      case 'r':
        return remember(little(4));
      case 'h':
        return recall(little(1));
      case 'j':
        return recall(little(4));
      case ')':
        return push_tuple({});
      case 't':
        return push_tuple(pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(pop_some(static_cast<std::size_t>(code - 0x84)));
      case ']':
        return push_container(Kind::list);
      case '}':
        return push_container(Kind::dict);
      case 'a':
        return fill(Kind::list, pop_some(1));
      case 'e':
        return fill(Kind::list, pop_to_mark());
      case 's':
        return fill(Kind::dict, pop_some(2));
      case 'u':
        return fill(Kind::dict, pop_to_mark());
      case 0x81:
        return start_object();
      case 'b':
        return finish_object();
      case 'Q':
        return push_storage();
      case 'R':
        return call();
      default:
        strange("there is an instruction that it does not have");
    }
  }

  // --- Bytes

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) strange("it is cut short");
    const std::string_view front = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return front;
  }
  int byte() { return static_cast<unsigned char>(take(1)[0]); }
  std::uint64_t little(std::size_t count) {
    const std::string_view digits = take(count);
    std::uint64_t value = 0;
    for (std::size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  std::string_view line() {
    const std::string_view text = take(std::min(bytes_.find('\n'), bytes_.size()));
    take(1);
    return text;
  }

  // --- The stack

  void push(Value value) { stack_.push_back(value); }
  void push_text(std::string_view text, Kind kind) {
    push({.kind = kind, .count = static_cast<std::uint32_t>(text.size()), .number = text.data() - all_.data()});
  }
  void push_container(Kind kind) {
    push({.kind = kind, .number = static_cast<std::int64_t>(containers_.size())});
    containers_.push_back({});
  }
  void push_number(std::int64_t number) { push({.kind = Kind::number, .number = number}); }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Values pop_some(std::size_t count) {
    if (stack_.size() - bottom() < count) strange("a value is missing");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    Values values(first, stack_.end());
    stack_.erase(first, stack_.end());
    return values;
  }
  Value pop() { return pop_some(1)[0]; }
  Values pop_to_mark() {
    if (marks_.empty()) strange("a mark is missing");
    Values values = pop_some(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }

  // To torch an object that has been started is a number.
  void remember(std::uint64_t place) {
    if (stack_.size() == bottom() || stack_.back().kind == Kind::started || place != memo_.size())
      strange("it remembers what it cannot");
    memo_.push_back(stack_.back());
  }
  void recall(std::uint64_t place) {
    if (place >= memo_.size()) strange("it recalls what it did not remember");
    push(memo_[place]);
  }

  // --- What a value says

  std::string text_of(const Value& value) const {
    return std::string(all_.substr(static_cast<std::size_t>(value.number), value.count));
  }
  // Of a global: two lines, of which the first is the module's.
  std::string name_of(const Value& global) const {
    std::string name = text_of(global);
    std::replace(name.begin(), name.end(), '\n', '.');
    return name;
  }
  std::span<const Value> items_of(const Value& tuple) const {
    return std::span(items_).subspan(static_cast<std::size_t>(tuple.number), tuple.count);
  }
  static bool is_container(const Value& value) { return value.kind == Kind::list || value.kind == Kind::dict; }
  int depth_of(const Value& value) const { return is_container(value) ? container_of(value).depth : value.depth; }

  // --- What holds others is filled once, before something holds it: so there are no cycles, and the depth is known.

  int depth_over(const Values& items) {
    int depth = 0;
    for (const Value& item : items) {
      if (item.kind == Kind::global || item.kind == Kind::started) strange("a class is no value");
      depth = std::max(depth, depth_of(item));
      if (is_container(item)) container_of(item).is_part = true;
    }
    if (depth >= most_nested) refuse("its data is nested too deep");
    return depth + 1;
  }
  void push_tuple(const Values& items) {
    // A storage's class is named in a tuple, and nowhere else.
    const bool is_storage = items.size() == 5 && items[1].kind == Kind::global && element_size(name_of(items[1])) > 0;
    push({.kind = Kind::tuple,
          .depth = static_cast<std::uint16_t>(is_storage ? 1 : depth_over(items)),
          .count = static_cast<std::uint32_t>(items.size()),
          .number = static_cast<std::int64_t>(items_.size())});
    items_.insert(items_.end(), items.begin(), items.end());
  }
  void fill(Kind kind, const Values& items) {
    if (stack_.size() == bottom() || stack_.back().kind != kind || container_of(stack_.back()).is_part)
      strange("it fills what it cannot");
    if (kind == Kind::dict && items.size() % 2 != 0) strange("a value is missing");
    for (const Value& item : items)
      if (is_container(item) && item.number == stack_.back().number) strange("a list holds itself");
    Container& filled = container_of(stack_.back());
    filled.depth = std::max(filled.depth, depth_over(items));
  }

  // --- Classes and functions

  void push_global() {
    const std::string_view module = line(), name = line();
    push_text(all_.substr(static_cast<std::size_t>(module.data() - all_.data()), module.size() + 1 + name.size()),
              Kind::global);
    check_global(name_of(stack_.back()));
  }
  void start_object() {
    const Value empty = pop();
    Value object = pop();
    const bool is_class = object.kind == Kind::global && name_of(object).starts_with("__torch__.");
    if (!is_class || empty.kind != Kind::tuple || empty.count != 0) strange("it makes an object of no class");
    object.kind = Kind::started;
    push(object);
  }
  void finish_object() {
    const Values both = pop_some(2);
    if (both[0].kind != Kind::started) strange("it sets attributes of no object");
    push({.kind = Kind::object, .depth = static_cast<std::uint16_t>(depth_over({both[1]}))});
  }

  // ("storage", torch.FloatStorage, "7", "cpu", 12): torch makes it as long as it is said to be.
  void push_storage() {
    const Value id = pop();
    if (id.kind != Kind::tuple || id.count != 5) strange("a storage has no name");
    const auto parts = items_of(id);
    const std::uint64_t size = parts[1].kind == Kind::global ? element_size(name_of(parts[1])) : 0;
    const bool is_named = parts[0].kind == Kind::text && text_of(parts[0]) == "storage" && size > 0 &&
                          parts[2].kind == Kind::text && parts[3].kind == Kind::text && parts[4].kind == Kind::number;
    if (!is_named) strange("a storage has no name");
    const auto bytes = size_of_storage_(text_of(parts[2]));
    if (!bytes) refuse("it is damaged: a tensor's numbers are not there");
    if (parts[4].number < 0 || static_cast<std::uint64_t>(parts[4].number) > *bytes / size) too_large();
    push({.kind = Kind::storage, .number = parts[4].number});
  }
  [[noreturn]] static void too_large() { refuse("it is damaged: a tensor is larger than what is stored of it"); }

  void call() {
    const Value arguments = pop(), function = pop();
    if (arguments.kind != Kind::tuple || function.kind != Kind::global) strange("it calls what is no function");
    const auto given = items_of(arguments);
    const std::string name = name_of(function);
    if (name == "torch._utils._rebuild_tensor_v2") return push_tensor(given);
    if (name == "collections.OrderedDict" && given.empty()) return push_container(Kind::dict);
    if (name == "torch.device" && given.size() == 1 && given[0].kind == Kind::text) return push({});
    if (name == "torch.jit._pickle.restore_type_tag" && given.size() == 2 && given[1].kind == Kind::text) {
      check_type(text_of(given[1]));
      return push(given[0]);
    }
    if (name.starts_with("torch.jit._pickle.build_") && given.size() == 1 && given[0].kind == Kind::list)
      return push(given[0]);
    strange("it calls " + printable(name, Lines::one, 200) + " with other arguments");
  }

  // torch parses it, and loads the classes that it names.
  static void check_type(const std::string& type) {
    const auto is_sign = [](char c) { return (c >= ' ' && c <= '~'); };
    const auto brackets = std::count(type.begin(), type.end(), '[');
    if (type.size() > longest_type || brackets > 64 || !std::all_of(type.begin(), type.end(), is_sign) ||
        type.find('(') != std::string::npos || type.find("torch.classes") != std::string::npos)
      strange("a type has a strange name");
  }

  // (storage, offset, sizes, strides, requires_grad, hooks): torch does not compare them with the storage.
  void push_tensor(std::span<const Value> given) {
    const bool is_whole = given.size() == 6 && given[0].kind == Kind::storage && given[1].kind == Kind::number &&
                          given[2].kind == Kind::tuple && given[3].kind == Kind::tuple;
    if (!is_whole || given[2].count != given[3].count || given[2].count > most_dimensions)
      strange("a tensor has no shape");
    const auto sizes = items_of(given[2]), strides = items_of(given[3]);
    const std::int64_t offset = given[1].number, stored = given[0].number;
    std::int64_t last = offset, count = 1, positive = 1;
    bool fits = offset >= 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      const Value &size = sizes[d], &stride = strides[d];
      std::int64_t span = 0;
      fits = fits && size.kind == Kind::number && stride.kind == Kind::number && size.number >= 0 &&
             stride.number >= 0 &&
             !__builtin_mul_overflow(std::max<std::int64_t>(size.number, 1), positive, &positive) &&
             !__builtin_mul_overflow(std::max<std::int64_t>(size.number, 1) - 1, stride.number, &span) &&
             !__builtin_add_overflow(last, span, &last);
      if (fits) count *= size.number;
    }
    if (!fits || (count > 0 ? last >= stored : offset > stored)) too_large();
    push({.kind = Kind::tensor});
  }

  struct Container {
    int depth = 0;
    bool is_part = false;  // whether something holds it already
  };
  Container& container_of(const Value& value) { return containers_[static_cast<std::size_t>(value.number)]; }
  const Container& container_of(const Value& value) const {
    return containers_[static_cast<std::size_t>(value.number)];
  }

  const std::string_view all_;
  std::string_view bytes_;  // that are left of it
  const SizeOfStorage& size_of_storage_;
  Values stack_, memo_, items_;  // items_: of all tuples, which cannot change
  std::vector<Container> containers_;
  std::vector<std::uint32_t> marks_;
};

}  // namespace

void screen_pickle(const std::string& pickle, Holds holds, const SizeOfStorage& size_of_storage) {
  const auto [root, items] = Reader(pickle, size_of_storage).read();
  if (holds == Holds::module) {
    if (root.kind != Kind::object) refuse("it holds no module");
    return;
  }
  if (root.kind != Kind::tuple) strange("its constants are none");
  for (const Value& constant : items)
    if (constant.kind != Kind::tensor && constant.kind != Kind::text)
      refuse("its source has constants that are neither tensors nor text");
}

}  // namespace spikeforge::torchscript
