#include <spikeforge/nir/byte_source.h>
#include <spikeforge/nir/error.h>
#include <spikeforge/nir/network/script_file.h>

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/serialization/unpickler.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>

namespace spikeforge::nir {
namespace {

[[noreturn]] void fail(const std::string& reason) { throw std::runtime_error(reason); }

// --- The archive: a zip file (APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3), of which torch packs nothing but code.

// Numbers and text where they lie, and nothing outside.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t number(std::size_t length) {
    const std::string_view digits = text(length);
    std::uint64_t value = 0;
    for (std::size_t i = length; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  std::string_view text(std::size_t length) {
    if (length > bytes_.size()) fail("is damaged: its directory is cut short");
    const std::string_view front = bytes_.substr(0, length);
    bytes_.remove_prefix(length);
    return front;
  }
  void expect(std::string_view mark) {
    if (text(mark.size()) != mark) fail("is damaged: its directory leads nowhere");
  }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

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
    cursor.expect("PK\3\4");
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
    cursor.expect("PK\1\2");
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

// --- The objects

class ScriptReader {
 public:
  ScriptReader(const ByteSource& source, const Limits& limits)
      // What is read of a directory or a pickle takes many times as much memory.
      : zip_(source, limits.bytes / 16), most_pickle_(limits.bytes / 16), bytes_left_(limits.bytes) {}

  c10::intrusive_ptr<c10::ivalue::Object> read() {
    if (zip_.size_of("data.pkl") > most_pickle_) fail("is beyond the limit of memory");
    std::string pickle(zip_.size_of("data.pkl"), '\0');
    zip_.read("data.pkl", pickle.data());
    std::size_t at = 0;
    torch::jit::Unpickler unpickler(
        [&](char* into, std::size_t length) {
          const std::size_t got = std::min(length, pickle.size() - at);
          std::memcpy(into, pickle.data() + at, got);
          at += got;
          return got;
        },
        [this](const c10::QualifiedName& name) { return type_named(name.qualifiedName()); },
        [this](const c10::StrongTypePtr&, const c10::IValue& attributes) { return object(attributes); },
        [this](const std::string& key) { return storage(key); }, c10::Device(c10::kCPU));
    const c10::IValue root = unpickler.parse_ivalue();
    if (!root.isObject()) fail("holds no module");
    root.visit([this](const c10::IValue& value) {
      if (value.isTensor()) check(value.toTensor());
      return false;
    });
    return root.toObject();
  }

 private:
  struct Storage {
    c10::DataPtr data;
    std::uint64_t size;
  };

  // Of a class, or of a list: "List[int]".
  c10::StrongTypePtr type_named(const std::string& name) const {
    if (name.starts_with("__torch__.")) return nameless_class();
    return {unit_, torch::jit::Unpickler::defaultTypeParser(name)};
  }

  c10::StrongTypePtr nameless_class() const {
    return {unit_, c10::ClassType::create(c10::QualifiedName("__torch__.Data"), unit_, /*is_module=*/true)};
  }

  // torch calls __setstate__ here, where a class has one.
  c10::intrusive_ptr<c10::ivalue::Object> object(const c10::IValue& attributes) const {
    if (!attributes.isGenericDict()) fail("has an object without attributes");
    const c10::StrongTypePtr type = nameless_class();
    const auto& dict = attributes.toGenericDict();
    auto result = c10::ivalue::Object::create(type, dict.size());
    for (const auto& item : dict) {
      if (!item.key().isString()) fail("has an attribute without a name");
      const std::size_t slot =
          type.type_->expectRef<c10::ClassType>().addAttribute(item.key().toStringRef(), c10::AnyType::get());
      result->setSlot(slot, item.value());
    }
    return result;
  }

  // Tensors may share one.
  c10::DataPtr storage(const std::string& key) {
    auto& storage = storages_[key];
    if (!storage) {
      const std::uint64_t size = zip_.size_of("data/" + key);
      if (size > bytes_left_) fail("is beyond the limit of memory");
      bytes_left_ -= size;
      storage = std::make_shared<Storage>(Storage{c10::GetCPUAllocator()->allocate(size), size});
      zip_.read("data/" + key, storage->data.get());
      if (size > 0) sizes_[storage->data.get()] = size;
    }
    auto* const keep = new std::shared_ptr<Storage>(storage);  // NOLINT: the DataPtr deletes it
    return {storage->data.get(), keep, [](void* kept) { delete static_cast<std::shared_ptr<Storage>*>(kept); },
            c10::Device(c10::kCPU)};
  }

  // A file says how long a storage is, and torch believes it.
  void check(const at::Tensor& tensor) const {
    if (!tensor.defined()) return;
    if (tensor.layout() != c10::kStrided || !tensor.device().is_cpu() || tensor.is_quantized() || tensor.is_nested())
      fail("has a tensor of another kind than torch's dense ones");
    if (tensor.numel() == 0) return;
    const auto found = sizes_.find(tensor.storage().data());
    std::int64_t last = tensor.storage_offset();
    bool is_too_far = found == sizes_.end();
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      std::int64_t span = 0;
      is_too_far |= __builtin_mul_overflow(tensor.size(d) - 1, tensor.stride(d), &span) || tensor.stride(d) < 0 ||
                    __builtin_add_overflow(last, span, &last);
    }
    if (is_too_far || last < 0 || static_cast<std::uint64_t>(last) >= found->second / tensor.element_size())
      fail("has a tensor that is larger than what is stored of it");
  }

  ZipFile zip_;
  std::uint64_t most_pickle_, bytes_left_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
  std::map<std::string, std::shared_ptr<Storage>> storages_;
  std::map<const void*, std::uint64_t> sizes_;
};

}  // namespace

c10::intrusive_ptr<c10::ivalue::Object> read_script_file(const std::string& file, const Limits& limits) {
  const ByteSource source = ByteSource::open(file);
  return ScriptReader(source, limits).read();
}

}  // namespace spikeforge::nir
