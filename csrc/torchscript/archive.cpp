#include "csrc/torchscript/internal/archive.h"
#include "csrc/base/byte_cursor.h"
#include "csrc/base/file_io.h"
#include "csrc/base/printable.h"
#include "csrc/torchscript/screened.h"

#include <c10/util/Exception.h>

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <set>

namespace spikeforge::torchscript {

void refuse(const std::string& reason) { throw ScreeningError(reason); }

namespace {

constexpr std::string_view local_mark = "PK\3\4", entry_mark = "PK\1\2", end_mark = "PK\5\6", end64_mark = "PK\6\6",
                           locator_mark = "PK\6\7";
constexpr std::size_t end_size = 22, locator_size = 20, end64_size = 56, longest_name = 400;
// Of records that are packed, which torch does with source alone: together, so that a small file is no large one.
constexpr std::uint64_t most_unpacked = std::uint64_t{256} << 20;

[[noreturn]] void damaged(const std::string& what) { refuse("it is damaged: " + what); }

[[noreturn]] void cut_short() { damaged("it is cut short"); }
using Cursor = ByteCursor<cut_short>;

struct Directory {
  std::uint64_t count, size, offset;
};

// One end record, the last bytes of the file; before it, where there is one, that of zip64, which then says the same;
// and right before them the directory. Readers that look elsewhere find nothing else.
Directory find_directory(std::string_view bytes) {
  if (bytes.size() < end_size || !bytes.starts_with(local_mark)) refuse("it is no zip file, or cut short");
  std::size_t end = bytes.size() - end_size;
  Cursor cursor(bytes, end);
  if (!cursor.takes(end_mark)) refuse("it is no zip file, or cut short, or something follows its end");
  const std::uint64_t disk = cursor.number(2), first_disk = cursor.number(2), here = cursor.number(2);
  Directory directory{};
  directory.count = cursor.number(2);
  directory.size = cursor.number(4);
  directory.offset = cursor.number(4);
  if (disk != 0 || first_disk != 0 || here != directory.count || cursor.number(2) != 0)
    damaged("its end record is not what torch writes");

  if (end >= locator_size + end64_size && Cursor(bytes, end - locator_size).takes(locator_mark)) {
    const std::size_t start = end - locator_size - end64_size;
    Cursor locator(bytes, end - locator_size + locator_mark.size()), wide(bytes, start);
    const bool is_there = locator.number(4) == 0 && locator.number(8) == start && locator.number(4) == 1 &&
                          wide.takes(end64_mark) && wide.number(8) == end64_size - 12;
    if (!is_there) damaged("its zip64 record is not where it should be");
    wide.text(4);  // versions
    const bool is_one_disk = wide.number(4) == 0 && wide.number(4) == 0;
    Directory large{};
    const std::uint64_t large_here = wide.number(8);
    large.count = wide.number(8);
    large.size = wide.number(8);
    large.offset = wide.number(8);
    const auto agree = [](std::uint64_t small, std::uint64_t number, std::uint64_t most) {
      return small == std::min(number, most);
    };
    if (!is_one_disk || large_here != large.count || !agree(directory.count, large.count, 0xffff) ||
        !agree(directory.size, large.size, 0xffffffff) || !agree(directory.offset, large.offset, 0xffffffff))
      damaged("its two end records differ");
    directory = large;
    end = start;
  }
  if (directory.offset > end || directory.size != end - directory.offset) damaged("its directory leads elsewhere");
  return directory;
}

struct Entry {
  std::string name;
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;
  bool is_packed = false;
};

// in_file, unpacked: how many bytes are left for records, and how many they come to.
Entry read_entry(Cursor& cursor, std::uint64_t& in_file, std::uint64_t& unpacked) {
  if (!cursor.takes(entry_mark)) damaged("its directory is damaged");
  cursor.text(4);
  if ((cursor.number(2) & 1) != 0) refuse("it is encrypted");
  const std::uint64_t method = cursor.number(2);
  cursor.text(4);
  Entry entry;
  entry.checksum = static_cast<std::uint32_t>(cursor.number(4));
  std::uint64_t stored = cursor.number(4);
  entry.size = cursor.number(4);
  const std::uint64_t name = cursor.number(2), extra = cursor.number(2), comment = cursor.number(2);
  cursor.text(12);
  if (name > longest_name) refuse("it has a record with a name of " + std::to_string(name) + " letters");
  entry.name = cursor.text(name);
  Cursor fields(cursor.text(extra));
  while (!fields.is_at_end()) {
    const std::uint64_t id = fields.number(2);
    Cursor field(fields.text(fields.number(2)));
    if (id != 1) continue;
    for (std::uint64_t* number : {&entry.size, &stored})  // those that are too large, in this order
      if (*number == 0xffffffff) *number = field.number(8);
  }
  cursor.text(comment);
  if (method == 0 ? stored != entry.size : method != 8) damaged(printable(entry.name) + " is packed in an unknown way");
  entry.is_packed = method == 8;
  if (entry.is_packed) unpacked += std::min(entry.size, most_unpacked + 1);
  if (stored > in_file) damaged("its records lie one over the other");
  in_file -= stored;
  if (unpacked > most_unpacked) refuse(printable(entry.name) + " is too large");
  return entry;
}

// RFC 1952, section 8.
std::uint32_t checksum_of(const char* data, std::size_t size) {
  static const auto table = [] {
    std::array<std::array<std::uint32_t, 256>, 8> all{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? 0xedb88320 ^ (value >> 1) : value >> 1;
      all[0][i] = value;
    }
    for (std::size_t k = 1; k < 8; ++k)
      for (std::size_t i = 0; i < 256; ++i) all[k][i] = (all[k - 1][i] >> 8) ^ all[0][all[k - 1][i] & 0xff];
    return all;
  }();
  std::uint32_t value = 0xffffffff;
  for (; size >= 8; data += 8, size -= 8) {  // eight bytes at a time, each by the table of its distance to the end
    std::uint64_t word = 0;
    std::memcpy(&word, data, 8);
    word ^= value;
    value = 0;
    for (std::size_t k = 0; k < 8; ++k) value ^= table[7 - k][word >> (8 * k) & 0xff];
  }
  for (; size > 0; ++data, --size) value = table[0][(value ^ static_cast<unsigned char>(*data)) & 0xff] ^ (value >> 8);
  return ~value;
}

// torch's own adapter for memory copies whatever is asked for.
class Memory : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Memory(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string_view bytes() const { return bytes_; }
  std::size_t size() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t at, void* into, std::size_t count, const char* /*what*/) const override {
    if (at >= bytes_.size()) return 0;
    count = std::min<std::size_t>(count, bytes_.size() - at);
    std::memcpy(into, bytes_.data() + at, count);
    return count;
  }

 private:
  const std::string bytes_;
};

std::string read_file(const std::string& path) {
  const PlainFile file = open_plain_file(path);
  if (!file.descriptor) refuse("it cannot be read: " + file.error);
  if (file.size > std::string().max_size()) throw std::bad_alloc();
  auto bytes = spikeforge::read_all(file.descriptor.get(), file.size);
  if (!bytes) refuse("it cannot be read to its end");
  return std::move(*bytes);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// All names begin with one folder's, and no two are the same to torch, for which case does not count.
std::size_t check_names(const std::vector<Entry>& entries) {
  if (entries.empty()) refuse("it is empty");
  const std::size_t slash = entries[0].name.find('/');
  if (slash == std::string::npos) refuse("its records are in no folder");
  const std::string folder = entries[0].name.substr(0, slash + 1);
  std::set<std::string> seen;
  for (const Entry& entry : entries) {
    if (!entry.name.starts_with(folder) || entry.name.size() == folder.size() ||
        entry.name.find('\0') != std::string::npos)
      refuse("it has a record " + printable(entry.name) + ", outside of its folder");
    if (!seen.insert(lower(entry.name)).second) damaged(printable(entry.name) + " is in it twice");
  }
  return folder.size();
}

}  // namespace

Archive::Archive(const std::string& file) {
  const auto memory = std::make_shared<Memory>(read_file(file));
  adapter_ = memory;
  const std::string_view bytes = memory->bytes();
  const Directory directory = find_directory(bytes);
  Cursor cursor(bytes.substr(directory.offset, directory.size));
  std::vector<Entry> entries;
  std::uint64_t in_file = directory.offset, unpacked = 0;
  for (std::uint64_t i = 0; i < directory.count; ++i) entries.push_back(read_entry(cursor, in_file, unpacked));
  if (!cursor.is_at_end()) damaged("its directory has more entries than it says");
  const std::size_t folder = check_names(entries);
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(adapter_);
    std::vector<std::string> names = reader_->getAllRecords(), own;
    for (const Entry& entry : entries) own.push_back(entry.name.substr(folder));
    if (names != own) damaged("torch finds other records in it than its directory has");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      records_.push_back({own[i], entries[i].size, entries[i].is_packed});
      sizes_.emplace(own[i], entries[i].size);
      const auto [data, size] = reader_->getRecord(own[i]);
      if (size != entries[i].size || checksum_of(static_cast<const char*>(data.get()), size) != entries[i].checksum)
        damaged("the checksum of " + printable(own[i]) + " is wrong");
    }
  } catch (const c10::Error& error) {
    const std::string words = error.what_without_backtrace();
    damaged(printable(words.substr(0, words.find('\n'))));
  }
}

Archive::~Archive() = default;

std::optional<std::uint64_t> Archive::size_of(const std::string& name) const {
  const auto found = sizes_.find(name);
  return found == sizes_.end() ? std::nullopt : std::optional(found->second);
}

std::string Archive::read(const std::string& name) const {
  const auto [data, size] = reader_->getRecord(name);
  return {static_cast<const char*>(data.get()), size};
}

}  // namespace spikeforge::torchscript
