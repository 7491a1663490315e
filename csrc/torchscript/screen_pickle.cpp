#include <spikeforge/base/printable.h>
#include <spikeforge/torchscript/internal/archive.h>
#include <spikeforge/torchscript/internal/screen_pickle.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace spikeforge::torchscript {
namespace {

constexpr int most_nested = 256;
constexpr std::size_t most_dimensions = 64, longest_type = 4096;

enum class Kind { other, number, text, global, started, object, tuple, list, dict, storage, tensor };

struct Value;
using Values = std::vector<Value>;

// What is known of a value on torch's stack.
struct Value {
  Kind kind = Kind::other;
  std::int64_t number = 0;             // or, of a storage, how many elements it is said to have
  std::string text = {};               // of a global its name
  std::shared_ptr<Values> items = {};  // of a tuple, which cannot change
  std::shared_ptr<bool> is_part = {};  // of lists and dictionaries: whether something holds it already
  int depth = 0;
};

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
      : bytes_(bytes), size_of_storage_(size_of_storage) {}

  Value read() {
    if (byte() != 0x80 || byte() != 2) strange("it is of another protocol");
    while (true) {
      const int code = byte();
      if (code == '.') break;
      follow(code);
    }
    if (!bytes_.empty() || stack_.size() != 1 || !marks_.empty()) strange("something is left over at its end");
    return stack_.back();
  }

 private:
  void follow(int code) {
    switch (code) {
      case '(':
        return marks_.push_back(stack_.size());
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
        return push({.kind = Kind::text, .text = std::string(take(little(4)))});
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
        return push({.kind = Kind::list, .is_part = std::make_shared<bool>(false)});
      case '}':
        return push({.kind = Kind::dict, .is_part = std::make_shared<bool>(false)});
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
  std::string line() {
    const std::string_view text = take(std::min(bytes_.find('\n'), bytes_.size()));
    take(1);
    return std::string(text);
  }

  // --- The stack

  void push(Value value) { stack_.push_back(std::move(value)); }
  void push_number(std::int64_t number) { push({.kind = Kind::number, .number = number}); }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Values pop_some(std::size_t count) {
    if (stack_.size() - bottom() < count) strange("a value is missing");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    Values values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    return values;
  }
  Value pop() { return std::move(pop_some(1)[0]); }
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

  // --- What holds others is filled once, before something holds it: so there are no cycles, and the depth is known.

  int depth_over(const Values& items) const {
    int depth = 0;
    for (const Value& item : items) {
      if (item.kind == Kind::global || item.kind == Kind::started) strange("a class is no value");
      depth = std::max(depth, item.depth);
      if (item.is_part) *item.is_part = true;
    }
    if (depth >= most_nested) refuse("its data is nested too deep");
    return depth + 1;
  }
  void push_tuple(Values items) {
    Value tuple{.kind = Kind::tuple};
    // A storage's class is named in a tuple, and nowhere else.
    const bool is_storage = items.size() == 5 && items[1].kind == Kind::global && element_size(items[1].text) > 0;
    if (is_storage)
      tuple.depth = 1;
    else
      tuple.depth = depth_over(items);
    tuple.items = std::make_shared<Values>(std::move(items));
    push(std::move(tuple));
  }
  void fill(Kind kind, const Values& items) {
    if (stack_.size() == bottom() || stack_.back().kind != kind || *stack_.back().is_part)
      strange("it fills what it cannot");
    if (kind == Kind::dict && items.size() % 2 != 0) strange("a value is missing");
    for (const Value& item : items)
      if (item.is_part && item.is_part == stack_.back().is_part) strange("a list holds itself");
    stack_.back().depth = std::max(stack_.back().depth, depth_over(items));
    // Whoever recalls it later must know how deep it is.
    for (Value& known : memo_)
      if (known.is_part && known.is_part == stack_.back().is_part) known.depth = stack_.back().depth;
  }

  // --- Classes and functions

  void push_global() {
    std::string module = line(), name = line();
    name = module + "." + name;
    check_global(name);
    push({.kind = Kind::global, .text = std::move(name)});
  }
  void start_object() {
    const Value empty = pop();
    Value object = pop();
    const bool is_class = object.kind == Kind::global && object.text.starts_with("__torch__.");
    if (!is_class || empty.kind != Kind::tuple || !empty.items->empty()) strange("it makes an object of no class");
    object.kind = Kind::started;
    push(std::move(object));
  }
  void finish_object() {
    const Values both = pop_some(2);
    if (both[0].kind != Kind::started) strange("it sets attributes of no object");
    push({.kind = Kind::object, .depth = depth_over({both[1]})});
  }

  // ("storage", torch.FloatStorage, "7", "cpu", 12): torch makes it as long as it is said to be.
  void push_storage() {
    const Value id = pop();
    if (id.kind != Kind::tuple || id.items->size() != 5) strange("a storage has no name");
    const Values& parts = *id.items;
    const bool is_named = parts[0].kind == Kind::text && parts[0].text == "storage" && parts[1].kind == Kind::global &&
                          element_size(parts[1].text) > 0 && parts[2].kind == Kind::text &&
                          parts[3].kind == Kind::text && parts[4].kind == Kind::number;
    if (!is_named) strange("a storage has no name");
    const auto bytes = size_of_storage_(parts[2].text);
    if (!bytes) refuse("it is damaged: a tensor's numbers are not there");
    if (parts[4].number < 0 || static_cast<std::uint64_t>(parts[4].number) > *bytes / element_size(parts[1].text))
      too_large();
    push({.kind = Kind::storage, .number = parts[4].number});
  }
  [[noreturn]] static void too_large() { refuse("it is damaged: a tensor is larger than what is stored of it"); }

  void call() {
    const Value arguments = pop(), function = pop();
    if (arguments.kind != Kind::tuple || function.kind != Kind::global) strange("it calls what is no function");
    const Values& given = *arguments.items;
    const std::string& name = function.text;
    if (name == "torch._utils._rebuild_tensor_v2") return push_tensor(given);
    if (name == "collections.OrderedDict" && given.empty())
      return push({.kind = Kind::dict, .is_part = std::make_shared<bool>(false)});
    if (name == "torch.device" && given.size() == 1 && given[0].kind == Kind::text) return push({});
    if (name == "torch.jit._pickle.restore_type_tag" && given.size() == 2 && given[1].kind == Kind::text) {
      check_type(given[1].text);
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
  void push_tensor(const Values& given) {
    const bool is_whole = given.size() == 6 && given[0].kind == Kind::storage && given[1].kind == Kind::number &&
                          given[2].kind == Kind::tuple && given[3].kind == Kind::tuple;
    if (!is_whole || given[2].items->size() != given[3].items->size() || given[2].items->size() > most_dimensions)
      strange("a tensor has no shape");
    const std::int64_t offset = given[1].number, stored = given[0].number;
    std::int64_t last = offset, count = 1, positive = 1;
    bool fits = offset >= 0;
    for (std::size_t d = 0; d < given[2].items->size(); ++d) {
      const Value &size = (*given[2].items)[d], &stride = (*given[3].items)[d];
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

  std::string_view bytes_;
  const SizeOfStorage& size_of_storage_;
  Values stack_, memo_;
  std::vector<std::size_t> marks_;
};

}  // namespace

void screen_pickle(const std::string& pickle, Holds holds, const SizeOfStorage& size_of_storage) {
  const Value root = Reader(pickle, size_of_storage).read();
  if (holds == Holds::module) {
    if (root.kind != Kind::object) refuse("it holds no module");
    return;
  }
  if (root.kind != Kind::tuple) strange("its constants are none");
  for (const Value& constant : *root.items)
    if (constant.kind != Kind::tensor && constant.kind != Kind::text)
      refuse("its source has constants that are neither tensors nor text");
}

}  // namespace spikeforge::torchscript
