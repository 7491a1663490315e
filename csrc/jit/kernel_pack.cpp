#include "csrc/jit/kernel_pack.h"
#include "csrc/base/environment.h"
#include "csrc/base/file_io.h"
#include "csrc/jit/kernel_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spikeforge::jit {
namespace {

// A file consists of the preamble, the index, and the images. For each kernel, the index has its entry, the length of
// skips its name, and the name.
constexpr char pack_magic[8] = {'S', 'P', 'I', 'K', 'E', 'P', 'A', 'K'};
constexpr std::uint64_t pack_version = 1;

struct PackPreamble {
  char magic[8];
  std::uint64_t version;
  Hash128 library;
  std::uint64_t index_length;
  std::uint64_t kernels;
  Hash128 index_checksum;
};
struct Entry {
  Hash128 key;
  std::uint64_t offset, length;  // of the image, from the beginning of the file
  Hash128 checksum;              // of the image
};
static_assert(sizeof(PackPreamble) == 64 && sizeof(Entry) == 48, "written as they lie in memory: no padding");

constexpr std::uint64_t longest_index = std::uint64_t{64} << 20, longest_image = longest_index;

template <class Value> std::string_view bytes_of(const Value& value) {
  static_assert(std::has_unique_object_representations_v<Value>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw PackError(fmt::format("kernel pack {}: {}", path, what));
}

class Reader {
 public:
  Reader(const std::string& path, std::string_view rest) : path_(path), rest_(rest) {}

  bool at_end() const { return rest_.empty(); }

  template <class Value> Value value() {
    Value result;
    const std::string_view bytes = take(sizeof result);
    std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  }
  std::string_view text() { return take(value<std::uint64_t>()); }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) fail(path_, "it is damaged");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  const std::string& path_;
  std::string_view rest_;
};

// Reads bytes at an offset. Returns false if the file ends before.
bool read_at(int file, std::uint64_t offset, char* to, std::uint64_t count) {
  while (count > 0) {
    const ssize_t got = ::pread(file, to, count, static_cast<off_t>(offset));
    if (got <= 0) return false;
    to += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::uint64_t>(got);
  }
  return true;
}

void warn(const std::string& what) { fmt::print(stderr, "spikeforge: warning: {}\n", what); }

// Returns the path of the pack that a build may place next to the library.
std::string pack_of_the_library() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<const void*>(&read_at), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string_view library = info.dli_fname;
  const std::size_t slash = library.rfind('/');
  if (slash == std::string_view::npos) return "";
  return std::string(library.substr(0, slash)) + "/libspikeforge.pack";
}

}  // namespace

void write_pack(const std::string& path, std::span<const PackedKernel> kernels) {
  std::uint64_t index_length = 0;
  for (const PackedKernel& kernel : kernels) index_length += sizeof(Entry) + sizeof(std::uint64_t) + kernel.name.size();
  std::string index;
  std::uint64_t offset = sizeof(PackPreamble) + index_length;
  for (const PackedKernel& kernel : kernels) {
    const std::string_view image(kernel.image.data(), kernel.image.size());
    index += bytes_of(Entry{kernel.key, offset, image.size(), hash128({image})});
    index += bytes_of(std::uint64_t{kernel.name.size()});
    index += kernel.name;
    offset += image.size();
  }
  PackPreamble preamble{{}, pack_version, KernelCache::library_key(), index.size(), kernels.size(), hash128({index})};
  std::memcpy(preamble.magic, pack_magic, sizeof pack_magic);

  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) fail(path, fmt::format("it cannot be written: {}", std::strerror(errno)));
  const bool written = write_all(file.get(), bytes_of(preamble)) && write_all(file.get(), index) &&
                       std::ranges::all_of(kernels,
                                           [&](const PackedKernel& kernel) {
                                             return write_all(file.get(), {kernel.image.data(), kernel.image.size()});
                                           }) &&
                       file.close() && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (written) return;
  const int error = errno;
  ::unlink(temporary.c_str());
  fail(path, fmt::format("it cannot be written: {}", std::strerror(error)));
}

KernelPack::KernelPack(const std::string& path) : path_(path) {
  PlainFile file = open_plain_file(path);
  if (!file.descriptor) fail(path, fmt::format("it cannot be opened: {}", file.error));
  file_ = std::move(file.descriptor);
  PackPreamble preamble;
  if (!read_at(file_.get(), 0, reinterpret_cast<char*>(&preamble), sizeof preamble) ||
      std::memcmp(preamble.magic, pack_magic, sizeof pack_magic) != 0)
    fail(path, "it is not a kernel pack");
  if (preamble.version != pack_version || preamble.library != KernelCache::library_key())
    fail(path, "another build of spikeforge wrote it; write it again with this one");
  if (preamble.index_length > longest_index) fail(path, "it is damaged");
  std::string index(preamble.index_length, '\0');
  if (!read_at(file_.get(), sizeof preamble, index.data(), index.size()) || preamble.index_checksum != hash128({index}))
    fail(path, "it is damaged");
  for (Reader reader(path, index); !reader.at_end();) {
    const auto entry = reader.value<Entry>();
    reader.text();  // its name
    if (entry.offset > file.size || entry.length > file.size - entry.offset)
      fail(path, "it is damaged: its end is missing");
    if (entry.length > longest_image) fail(path, "it is damaged");
    places_.insert_or_assign(entry.key, Place{entry.offset, entry.length, entry.checksum});
  }
}

std::optional<std::vector<char>> KernelPack::find(const Hash128& key) const {
  const auto found = places_.find(key);
  if (found == places_.end()) return {};
  const Place& place = found->second;
  std::vector<char> image(place.length);
  if (!read_at(file_.get(), place.offset, image.data(), image.size()) ||
      hash128({std::string_view(image.data(), image.size())}) != place.checksum) {
    warn(fmt::format("kernel pack {}: a kernel in it is damaged", path_));
    return {};
  }
  return image;
}

KernelPacks& KernelPacks::get() {
  // Leaked, like KernelCache.
  static KernelPacks& packs = *[] {
    auto* const made = new KernelPacks;
    const auto try_to_add = [&](const std::string& path) {
      try {
        made->add(path);
      } catch (const PackError& e) {
        warn(e.what());
      }
    };
    if (const std::string path = pack_of_the_library(); !path.empty() && ::access(path.c_str(), F_OK) == 0)
      try_to_add(path);
    const std::string named = environment("SPIKEFORGE_KERNEL_PACK");
    for (std::string_view rest = named; !rest.empty();) {
      const std::string_view path = rest.substr(0, rest.find(':'));
      if (!path.empty()) try_to_add(std::string(path));
      rest.remove_prefix(std::min(rest.size(), path.size() + 1));
    }
    return made;
  }();
  return packs;
}

std::size_t KernelPacks::add(const std::string& path) {
  KernelPack pack(path);
  const std::size_t size = pack.size();
  const std::lock_guard lock(mutex_);
  packs_.push_back(std::move(pack));
  return size;
}

std::optional<std::vector<char>> KernelPacks::find(const Hash128& key) const {
  const std::lock_guard lock(mutex_);
  for (auto pack = packs_.rbegin(); pack != packs_.rend(); ++pack)
    if (auto image = pack->find(key)) return image;
  return {};
}

}  // namespace spikeforge::jit
