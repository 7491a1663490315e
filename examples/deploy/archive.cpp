#include "archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>

#include "error.h"

// APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3.
namespace {

constexpr std::string_view end_mark = "PK\5\6", end64_mark = "PK\6\6", entry_mark = "PK\1\2", local_mark = "PK\3\4";

// Reads numbers where they lie, and nothing outside of the file.
class Cursor {
 public:
  Cursor(std::string_view bytes, std::size_t at) : bytes_(bytes), at_(at) {}

  std::uint64_t number(int length) {
    const std::string_view digits = text(length);
    std::uint64_t value = 0;
    for (int i = length; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  std::string_view text(std::size_t length) {
    if (at_ > bytes_.size() || length > bytes_.size() - at_) throw UserError("it is cut short");
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  void expect(std::string_view mark) {
    if (text(mark.size()) != mark) throw UserError("its directory is damaged");
  }
  void skip(std::size_t length) { text(length); }
  std::size_t position() const { return at_; }

 private:
  std::string_view bytes_;
  std::size_t at_;
};

struct Directory {
  std::size_t count, offset;
};

Directory find_directory(std::string_view bytes) {
  const std::size_t end = bytes.rfind(end_mark);
  if (end == std::string_view::npos) throw UserError("it is no zip file, or cut short");
  Cursor cursor(bytes, end + 10);
  std::size_t count = cursor.number(2);
  cursor.skip(4);
  std::size_t offset = cursor.number(4);
  if (count == 0xffff || offset == 0xffffffff) {  // the numbers are too large for the first form
    const std::size_t end64 = bytes.rfind(end64_mark, end);
    if (end64 == std::string_view::npos) throw UserError("its directory is damaged");
    Cursor large(bytes, end64 + 32);
    count = large.number(8);
    large.skip(8);
    offset = large.number(8);
  }
  return {count, offset};
}

Entry read_entry(Cursor& cursor) {
  Entry entry;
  cursor.expect(entry_mark);
  cursor.skip(6);
  entry.method = static_cast<int>(cursor.number(2));
  cursor.skip(4);
  entry.checksum = static_cast<std::uint32_t>(cursor.number(4));
  entry.stored = cursor.number(4);
  entry.size = cursor.number(4);
  const std::size_t name = cursor.number(2), extra = cursor.number(2), comment = cursor.number(2);
  cursor.skip(8);
  entry.offset = cursor.number(4);
  entry.name = cursor.text(name);
  Cursor fields(cursor.text(extra), 0);
  for (std::size_t left = extra; left >= 4;) {
    const std::size_t id = fields.number(2), length = fields.number(2);
    const std::string_view field = fields.text(length);
    left -= 4 + length;
    if (id != 1) continue;
    Cursor large(field, 0);  // those of the numbers that are too large, in this order
    for (std::size_t* number : {&entry.size, &entry.stored, &entry.offset})
      if (*number == 0xffffffff) *number = large.number(8);
  }
  cursor.skip(comment);
  return entry;
}

std::string_view stored_bytes(std::string_view bytes, const Entry& entry) {
  Cursor cursor(bytes, entry.offset);
  cursor.expect(local_mark);
  cursor.skip(22);
  const std::size_t name = cursor.number(2), extra = cursor.number(2);
  if (cursor.text(name) != entry.name) throw UserError("its directory is damaged");
  cursor.skip(extra);
  return cursor.text(entry.stored);
}

// Gives the entry's bytes piece by piece.
void unpack(std::string_view bytes, const Entry& entry, const std::function<void(std::string_view)>& take) {
  const std::string_view stored = stored_bytes(bytes, entry);
  if (entry.method == 0) return take(stored);
  if (entry.method != 8) throw UserError(fmt::format("{} is packed in an unknown way", entry.name));
  z_stream stream = {};
  if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  struct End {
    z_stream& stream;
    ~End() { ::inflateEnd(&stream); }
  } const end{stream};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));  // NOLINT: zlib does not write there
  stream.avail_in = static_cast<uInt>(stored.size());
  std::array<char, 1 << 16> piece;
  for (int status = Z_OK; status != Z_STREAM_END;) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = piece.size();
    status = ::inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) throw UserError(fmt::format("{} is damaged", entry.name));
    take({piece.data(), piece.size() - stream.avail_out});
  }
}

void check(std::string_view bytes, const Entry& entry) {
  std::uint32_t checksum = 0;
  std::size_t size = 0;
  unpack(bytes, entry, [&](std::string_view piece) {
    checksum =
        static_cast<std::uint32_t>(::crc32_z(checksum, reinterpret_cast<const Bytef*>(piece.data()), piece.size()));
    size += piece.size();
    if (size > entry.size) throw UserError(fmt::format("{} is larger than it says", entry.name));
  });
  if (size != entry.size || checksum != entry.checksum)
    throw UserError(fmt::format("the checksum of {} is wrong", entry.name));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file || !bytes) throw UserError(fmt::format("cannot read {}, or it is empty", path));
  return bytes.str();
}

}  // namespace

Archive::Archive(const std::string& path) : path_(path), bytes_(read_file(path)) {
  try {
    const Directory directory = find_directory(bytes_);
    Cursor cursor(bytes_, directory.offset);
    std::set<std::string> names;
    for (std::size_t i = 0; i < directory.count; ++i) {
      Entry entry = read_entry(cursor);
      if (!names.insert(entry.name).second) throw UserError(fmt::format("{} is in it twice", entry.name));
      check(bytes_, entry);
      entries_.push_back(std::move(entry));
    }
  } catch (const UserError& error) {
    throw UserError(fmt::format("{} is damaged: {}", path, error.what()));
  }
}

std::string Archive::read(const Entry& entry, std::size_t limit) const {
  if (entry.size > limit) throw UserError(fmt::format("{}: {} is too large", path_, entry.name));
  std::string all;
  unpack(bytes_, entry, [&](std::string_view piece) { all += piece; });
  return all;
}
