#include "csrc/nir/object_index.h"
#include "csrc/nir/global_heap.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string_view>

namespace spikeforge::nir {
namespace {

constexpr int any_level = -1;
constexpr int most_levels = 64;
constexpr std::size_t most_messages = 1 << 16;  // the count has 16 bits

enum Message : unsigned { datatype = 0x03, data_layout = 0x08, continuation = 0x10, symbol_table = 0x11 };

[[noreturn]] void damaged(const char* what) { throw std::runtime_error(what); }

}  // namespace

void check_superblock(const ByteSource& source) {
  constexpr std::string_view signature("\x89HDF\r\n\x1a\n", 8);
  constexpr std::size_t fixed = 24, between = 4;  // bytes up to the flags; two more fields in version 1
  std::array<std::byte, fixed + between + 32> bytes{};
  // The superblock is at the beginning, or after a user block of 512, 1024, ... bytes.
  for (std::uint64_t at = 0; at + fixed <= source.size(); at = at == 0 ? 512 : 2 * at) {
    const std::size_t size = std::min<std::uint64_t>(bytes.size(), source.size() - at);
    if (!source.read(at, std::span(bytes).first(size))) return;
    if (std::memcmp(bytes.data(), signature.data(), signature.size()) != 0) continue;
    const auto version = std::to_integer<unsigned>(bytes[8]);
    if (version > 1) return;
    const auto address_size = std::to_integer<std::size_t>(bytes[13]);
    if (address_size != 2 && address_size != 4 && address_size != 8) damaged("has a superblock of unknown sizes");
    // The position after the addresses of the file's base, its free space and its end.
    const std::size_t place = fixed + (version == 1 ? between : 0) + 3 * address_size;
    if (place + address_size > size) damaged("has a superblock that is cut off");
    const std::uint64_t undefined = ~std::uint64_t{0} >> (64 - 8 * address_size);
    if (little_endian(&bytes[place], address_size) != undefined)
      damaged("has a driver information block, as files have that are spread over several: it is not read");
    return;
  }
}

// A piece of the file, read sequentially.
class ObjectIndexChecker::Bytes {
 public:
  Bytes(std::vector<std::byte> bytes, const FileLayout& layout) : bytes_(std::move(bytes)), layout_(layout) {}

  std::uint64_t number(std::size_t size) {
    need(size);
    const std::uint64_t value = little_endian(&bytes_[at_], size);
    at_ += size;
    return value;
  }
  std::uint64_t address() { return number(layout_.address_size); }
  std::uint64_t length() { return number(layout_.length_size); }
  void skip(std::size_t size) {
    need(size);
    at_ += size;
  }
  bool begins_with(std::string_view text) {
    need(text.size());
    const bool does = std::memcmp(&bytes_[at_], text.data(), text.size()) == 0;
    at_ += text.size();
    return does;
  }
  // Compares without advancing.
  bool see(std::string_view text) const {
    return text.size() <= left() && std::memcmp(&bytes_[at_], text.data(), text.size()) == 0;
  }
  std::size_t left() const { return bytes_.size() - at_; }

 private:
  void need(std::size_t size) const {
    if (size > left()) damaged("its header is damaged");
  }

  std::vector<std::byte> bytes_;
  const FileLayout& layout_;
  std::size_t at_ = 0;
};

std::vector<std::byte> ObjectIndexChecker::raw_bytes(std::uint64_t address, std::uint64_t size) {
  std::uint64_t offset = 0;
  if (__builtin_add_overflow(layout_.base, address, &offset) || offset > source_.size() ||
      size > source_.size() - offset)
    damaged("it points beyond the end of the file");
  // Limits the work, which overlapping pieces could make quadratic in the size of the file.
  walked_ += size;
  if (walked_ / 8 > source_.size()) damaged("its index is damaged");
  std::vector<std::byte> bytes(size);
  if (!source_.read(offset, bytes)) damaged("it points beyond the end of the file");
  return bytes;
}

ObjectIndexChecker::Bytes ObjectIndexChecker::bytes_at(std::uint64_t address, std::uint64_t size) {
  return {raw_bytes(address, size), layout_};
}

bool ObjectIndexChecker::is_undefined(std::uint64_t address) const {
  return address == ~std::uint64_t{0} >> (64 - 8 * layout_.address_size);
}

bool ObjectIndexChecker::is_address(std::uint64_t address) const {
  return layout_.base <= source_.size() && address < source_.size() - layout_.base;
}

void ObjectIndexChecker::visit_once(std::uint64_t address) {
  if (!visited_.insert(address).second) damaged("its index leads in a circle");
}

void ObjectIndexChecker::check(std::uint64_t header) {
  if (!checked_.insert(header).second) return;
  Bytes prefix = bytes_at(header, 16);
  if (prefix.number(1) != 1) return;  // "OHDR", the newer layout
  prefix.skip(7);
  std::deque<Place> blocks = {{header + 16, prefix.number(4)}};
  std::set<std::uint64_t> seen;
  std::size_t messages = 0;
  while (!blocks.empty()) {
    const Place block = blocks.front();
    blocks.pop_front();
    if (!seen.insert(block.address).second) damaged("its header leads in a circle");
    Bytes bytes = bytes_at(block.address, block.size);
    while (bytes.left() >= 8) {
      if (++messages > most_messages) damaged("its header is damaged");
      const auto type = bytes.number(2), size = bytes.number(2);
      const auto flags = bytes.number(1);
      bytes.skip(3);
      if (size > bytes.left()) damaged("its header is damaged");
      const std::size_t behind = bytes.left() - size;
      if (type == datatype) {
        if (flags & 2) damaged("its type is a separate object (a committed type): expected numbers or text");
        check_type(bytes);
      } else if (type == continuation) {
        const std::uint64_t address = bytes.address();
        blocks.push_back({address, bytes.length()});
      } else if (type == symbol_table) {
        const std::uint64_t tree = bytes.address();
        group(tree, bytes.address());
      } else if (type == data_layout && size >= 2 && bytes.number(1) == 3 && bytes.number(1) == 2) {
        const auto dimensions = bytes.number(1);  // including one for the bytes of an element
        const std::uint64_t tree = bytes.address();
        if (!is_undefined(tree)) chunk_tree(tree, any_level, 8 + 8 * dimensions);
      }
      if (bytes.left() < behind) damaged("its header is damaged");
      bytes.skip(bytes.left() - behind);
    }
  }
}

// Accepts only the types that read_dataset() supports. For others, libhdf5 may search for the end of a member's name
// after the message.
void ObjectIndexChecker::check_type(Bytes& bytes) {
  enum Class { integer, floating, time, string, bits, opaque, compound, reference, enumeration, variable, array };
  const auto kind = bytes.number(1) & 15;
  const auto bit_field = bytes.number(3);
  bytes.skip(4);  // its size
  switch (kind) {
    case integer:
    case floating:
    case string: return;
    case bits: damaged("it is of a bit field type: expected numbers or text");
    case opaque: damaged("it is of an opaque type: expected numbers or text");
    case compound: damaged("it is of a compound type (complex numbers are one): expected numbers or text");
    case reference: damaged("it is of a reference type: expected numbers or text");
    case array: damaged("it is of an array type: expected numbers or text");
    case variable:
      if ((bit_field & 15) != 1) damaged("it is of a type of variable length: expected numbers or text");
      if (const auto base = bytes.number(1) & 15; base != string && base != integer) damaged("its type is damaged");
      return;
    case enumeration: {
      // The type of the values (8 bytes, and 4 for the bit range), then the names, each padded to 8 bytes up to version
      // 2.
      constexpr std::string_view padded("FALSE\0\0\0TRUE\0\0\0\0\0\1", 18), tight("FALSE\0TRUE\0\0\1", 13);
      bool is_boolean =
          (bit_field & 0xffff) == 2 && (bytes.number(1) & 15) == integer && bytes.left() >= 11 + tight.size();
      if (is_boolean) {
        bytes.skip(11);
        is_boolean = bytes.see(tight) || bytes.see(padded);
      }
      if (!is_boolean) damaged("it is of an enumeration type other than FALSE and TRUE");
      return;
    }
    default: damaged("its type is of an unknown kind: expected numbers or text");
  }
}

void ObjectIndexChecker::group(std::uint64_t tree, std::uint64_t heap) {
  const Names names = names_of_heap(heap);
  group_tree(tree, any_level, names);
}

template <class Child>
void ObjectIndexChecker::tree_node(std::uint64_t address, int type, int level, std::size_t key_size, unsigned k,
                                   Child&& child) {
  visit_once(address);
  Bytes header = bytes_at(address, 8 + 2 * layout_.address_size);
  if (!header.begins_with("TREE") || header.number(1) != static_cast<unsigned>(type)) damaged("its index is damaged");
  const int own_level = static_cast<int>(header.number(1));
  const auto count = header.number(2);
  if (own_level > most_levels || (level != any_level && own_level != level) || count > 2 * k)
    damaged("its index is damaged");
  for (int side = 0; side < 2; ++side) {
    const std::uint64_t sibling = header.address();
    if (!is_undefined(sibling) && !is_address(sibling)) damaged("its index points beyond the end of the file");
  }
  const std::size_t entry = key_size + layout_.address_size;
  Bytes entries = bytes_at(address + 8 + 2 * layout_.address_size, count * entry);
  for (std::uint64_t i = 0; i < count; ++i) {
    entries.skip(key_size);
    child(entries.address(), own_level - 1);
  }
}

void ObjectIndexChecker::group_tree(std::uint64_t address, int level, const Names& names) {
  tree_node(address, 0, level, layout_.length_size, layout_.group_tree_k, [&](std::uint64_t child, int below) {
    if (below < 0)
      symbols(child, names);
    else
      group_tree(child, below, names);
  });
}

void ObjectIndexChecker::symbols(std::uint64_t address, const Names& names) {
  visit_once(address);
  Bytes header = bytes_at(address, 8);
  if (!header.begins_with("SNOD") || header.number(1) != 1) damaged("its table of members is damaged");
  header.skip(1);
  const auto count = header.number(2);
  if (count > 2 * layout_.symbols_k) damaged("its table of members is damaged");
  const std::size_t entry = 2 * layout_.address_size + 24;
  Bytes entries = bytes_at(address + 8, count * entry);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t name = entries.address(), object = entries.address();
    const auto cached = entries.number(4);
    entries.skip(20);
    const auto first = names.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(name, names.size()));
    if (std::find(first, names.end(), std::byte{0}) == names.end()) damaged("a member's name has no end");
    // A soft link has no object.
    if (!is_address(object) && !(cached == 2 && is_undefined(object)))
      damaged("a member is beyond the end of the file");
  }
}

ObjectIndexChecker::Names ObjectIndexChecker::names_of_heap(std::uint64_t heap) {
  visit_once(heap);
  Bytes header = bytes_at(heap, 8 + 2 * layout_.length_size + layout_.address_size);
  if (!header.begins_with("HEAP") || header.number(1) != 0) damaged("its names are damaged");
  header.skip(3);
  const std::uint64_t size = header.length();
  std::uint64_t free = header.length();
  const std::uint64_t begin = header.address();
  Names names = raw_bytes(begin, size);

  // The list of free pieces, each with the offset of the next. It ends with 1 or with the undefined length.
  constexpr std::uint64_t no_more = 1;
  const std::uint64_t undefined = ~std::uint64_t{0} >> (64 - 8 * layout_.length_size);
  for (std::uint64_t pieces = 0; free != no_more && free != undefined; ++pieces) {
    if (pieces > size / (2 * layout_.length_size) || free >= size || 2 * layout_.length_size > size - free)
      damaged("the free list of its names is damaged");
    Bytes piece = bytes_at(begin + free, 2 * layout_.length_size);
    const std::uint64_t next = piece.length(), piece_size = piece.length();
    if (piece_size > size - free) damaged("the free list of its names is damaged");
    free = next;
  }
  return names;
}

void ObjectIndexChecker::chunk_tree(std::uint64_t address, int level, std::size_t key_size) {
  tree_node(address, 1, level, key_size, layout_.chunk_tree_k, [&](std::uint64_t child, int below) {
    if (below >= 0)
      chunk_tree(child, below, key_size);
    else if (!is_address(child))
      damaged("a chunk is beyond the end of the file");
  });
}

}  // namespace spikeforge::nir
