#include "csrc/jit/disk_cache.h"
#include "csrc/base/environment.h"
#include "csrc/base/file_io.h"
#include "csrc/base/hash.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <system_error>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

namespace spikeforge::jit {
namespace {

constexpr std::string_view temporary_prefix = ".spikeforge_";
constexpr off_t largest_entry = off_t{1} << 30;
constexpr std::time_t temporary_lifetime = 3600;  // seconds: older ones were left by a process that died

std::string last_error() { return std::generic_category().message(errno); }

void warn_on_stderr(const std::string& text) { fmt::print(stderr, "spikeforge: warning: {}\n", text); }

// ---- entries ----

// Returns the bytes of a file of the disk cache: magic, version, lengths, a checksum of key and payload, the key, the
// payload.
constexpr char entry_magic[8] = {'S', 'P', 'I', 'K', 'E', 'K', 'R', 'N'};
constexpr std::uint64_t entry_version = 1;

struct Preamble {
  char magic[8];
  std::uint64_t version;
  std::uint64_t key_length;
  std::uint64_t payload_length;
  Hash128 checksum;
};
static_assert(sizeof(Preamble) == 48, "written to disk as it lies in memory, so it must have no padding");

// True for an entry of any version.
bool is_entry(std::string_view preamble) { return preamble.starts_with({entry_magic, sizeof entry_magic}); }

std::optional<Preamble> preamble_of(std::string_view file) {
  Preamble preamble;
  if (file.size() < sizeof preamble || !is_entry(file)) return {};
  std::memcpy(&preamble, file.data(), sizeof preamble);
  if (preamble.version != entry_version) return {};
  return preamble;
}

std::string encode_entry(std::string_view key, std::span<const char> payload) {
  const std::string_view content(payload.data(), payload.size());
  Preamble preamble{{}, entry_version, key.size(), content.size(), hash128({key, content})};
  std::memcpy(preamble.magic, entry_magic, sizeof entry_magic);

  std::string file(reinterpret_cast<const char*>(&preamble), sizeof preamble);
  file += key;
  file += content;
  return file;
}

// The size of an entry that begins so, if it has this version.
std::optional<std::uint64_t> entry_size(std::string_view beginning) {
  const std::optional<Preamble> preamble = preamble_of(beginning);
  std::uint64_t size = sizeof(Preamble);
  if (!preamble || __builtin_add_overflow(size, preamble->key_length, &size) ||
      __builtin_add_overflow(size, preamble->payload_length, &size))
    return {};
  return size;
}

// Returns the payload if `file` is complete and was stored under `key`.
std::optional<std::vector<char>> decode_entry(std::string_view file, std::string_view key) {
  const std::optional<Preamble> found = preamble_of(file);
  if (!found) return {};
  const Preamble& preamble = *found;
  file.remove_prefix(sizeof preamble);
  // The lengths come from the file: compared one by one, their sum cannot overflow.
  if (preamble.key_length != key.size() || !file.starts_with(key)) return {};
  const std::string_view payload = file.substr(key.size());
  if (preamble.payload_length != payload.size()) return {};
  if (preamble.checksum != hash128({key, payload})) return {};
  return std::vector<char>(payload.begin(), payload.end());
}

// ---- names ----

// Returns the stem as a part of a file name: a neuron's name may contain any character, such as a slash.
std::string readable(std::string_view stem) {
  std::string name(stem.substr(0, 64));
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  };
  std::ranges::replace_if(
      name, [&](char c) { return !is_plain(c); }, '_');
  return name;
}

// Returns the part of a file name before the compiler.
std::string name_prefix(const DiskKey& key, std::string_view stem) {
  std::string arch = key.arch;
  std::erase(arch, '_');
  return fmt::format("{}_{}_{}_", readable(stem), key.hash.hex(), arch);
}

// Returns the parts between the last `count` underscores, starting with the last.
std::vector<std::string_view> last_parts(std::string_view name, std::size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() < count) {
    const std::size_t underscore = name.rfind('_');
    if (underscore == std::string_view::npos) break;
    parts.push_back(name.substr(underscore + 1));
    name = name.substr(0, underscore);
  }
  return parts;
}

bool is_hash(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// True for the name of an entry. Eviction deletes only files with the name and the preamble of an entry, since the
// folder may contain other files of the user.
bool is_entry_name(std::string_view name) {
  const std::vector<std::string_view> parts = last_parts(name, 3);
  if (parts.size() < 3 || !is_hash(parts[2])) return false;
  const std::string_view compiler = parts[0], arch = parts[1];
  return (compiler.starts_with("nvrtc") && compiler.ends_with(".cubin") && arch.starts_with("sm")) ||
         compiler == "cxx.so";
}

bool is_temporary_name(std::string_view name) {
  if (!name.starts_with(temporary_prefix)) return false;
  name.remove_prefix(temporary_prefix.size());  // the process id and a number
  const std::size_t underscore = name.find('_');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return underscore != std::string_view::npos && is_number(name.substr(0, underscore)) &&
         is_number(name.substr(underscore + 1));
}

// Returns {13, 0} for "nvrtc13.0.cubin".
std::pair<int, int> compiler_version(std::string_view name) {
  std::pair<int, int> version;
  name.remove_prefix(std::min(name.find_first_of("0123456789"), name.size()));
  const auto major = std::from_chars(name.data(), name.data() + name.size(), version.first);
  if (major.ptr != name.data() + name.size()) std::from_chars(major.ptr + 1, name.data() + name.size(), version.second);
  return version;
}

// ---- folders and files ----

std::vector<std::string> list_folder(const FileDescriptor& folder) {
  const int again = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // readdir moves the file position
  if (again < 0) return {};
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(again), close);
  if (!stream) return ::close(again), std::vector<std::string>{};
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream.get())) names.emplace_back(entry->d_name);
  return names;
}

bool only_user_writes(const struct stat& status) {
  return status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Opens an entry. O_NONBLOCK, because open() of a named pipe would wait for a writer.
FileDescriptor open_entry(const FileDescriptor& folder, const std::string& name) {
  return FileDescriptor(::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

std::string beginning_of(const FileDescriptor& file) {
  std::string preamble(sizeof(Preamble), '\0');
  const ssize_t got = ::pread(file.get(), preamble.data(), preamble.size(), 0);
  preamble.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return preamble;
}

// Creates missing folders, accessible only to the user.
void make_folders(const std::filesystem::path& folder) {
  std::filesystem::path each;
  for (const auto& part : folder) {
    each /= part;
    ::mkdir(each.c_str(), S_IRWXU);
  }
}

// Returns the path without a trailing slash or dot, which would follow a link.
std::filesystem::path without_end(const std::filesystem::path& path) {
  std::string folder = path.string();
  while (folder.size() > 1 && (folder.ends_with('/') || folder.ends_with("/."))) folder.pop_back();
  return folder;
}

std::filesystem::path folder_from_environment() {
  const std::string own = environment("SPIKEFORGE_CACHE_DIR");
  if (own == "off" || own == "0") return {};
  if (!own.empty()) return own;
  const std::filesystem::path xdg = environment("XDG_CACHE_HOME");
  if (xdg.is_absolute()) return xdg / "spikeforge";  // a relative path is ignored, as its specification requires
  const std::filesystem::path home = environment("HOME");
  if (home.is_absolute()) return home / ".cache" / "spikeforge";
  return {};
}

}  // namespace

DiskCache::Config DiskCache::Config::from_environment() {
  Config config;
  config.folder = without_end(folder_from_environment());
  const std::string limit = environment("SPIKEFORGE_CACHE_LIMIT_MB");
  std::uint32_t megabytes = 0;
  const auto parsed = std::from_chars(limit.data(), limit.data() + limit.size(), megabytes);
  if (parsed.ec == std::errc() && parsed.ptr == limit.data() + limit.size())
    config.limit_bytes = std::uint64_t{megabytes} << 20;
  else if (!limit.empty())
    warn_on_stderr(fmt::format("SPIKEFORGE_CACHE_LIMIT_MB must be a whole number of megabytes, but is \"{}\"; using {}",
                               limit, config.limit_bytes >> 20));
  return config;
}

DiskCache::DiskCache(Config config) : config_{without_end(config.folder), config.limit_bytes, std::move(config.warn)} {}

DiskCache& DiskCache::get() {
  static DiskCache& cache = *new DiskCache(Config::from_environment());  // leaked, like the kernel cache that uses it
  return cache;
}

std::string DiskCache::file_name(const DiskKey& key, std::string_view stem) {
  return fmt::format("{}{}{}", name_prefix(key, stem), key.compiler, key.suffix);
}

void DiskCache::warn(const std::string& what) {
  if (warned_.exchange(true)) return;
  const std::string text = fmt::format("kernel cache {}: {} (SPIKEFORGE_CACHE_DIR names another folder, or off)",
                                       config_.folder.string(), what);
  config_.warn ? config_.warn(text) : warn_on_stderr(text);
}

// Opens and checks the folder. All later steps use this descriptor, so that the checked folder is the one that is used.
FileDescriptor DiskCache::open_folder(Create create) {
  if (config_.folder.empty()) return FileDescriptor();
  if (create == Create::yes) make_folders(config_.folder);
  struct stat status;
  if (::lstat(config_.folder.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
    warn("is not used, because it is a symbolic link");
    return FileDescriptor();
  }
  FileDescriptor folder(::open(config_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) {
    if (create == Create::yes) warn(fmt::format("cannot be opened: {}", last_error()));
    return folder;
  }
  if (::fstat(folder.get(), &status) != 0 || !only_user_writes(status)) {
    warn("is not used, because it belongs to another user or others can write to it; it needs mode 0700");
    return FileDescriptor();
  }
  return folder;
}

std::optional<std::vector<char>> DiskCache::load(const DiskKey& key, std::string_view stem) {
  const FileDescriptor folder = open_folder(Create::no);
  if (!folder) return {};
  for (const std::string& name : names_for(folder, key, stem))
    if (auto payload = load_file(folder, name)) return payload;
  return {};
}

std::vector<std::string> DiskCache::names_for(const FileDescriptor& folder, const DiskKey& key, std::string_view stem) {
  if (!key.compiler.empty()) return {file_name(key, stem)};
  const std::string prefix = name_prefix(key, stem);
  std::vector<std::string> names = list_folder(folder);
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix) || !is_entry_name(name); });
  std::ranges::sort(names, std::greater<>(),
                    [&](std::string_view name) { return compiler_version(name.substr(prefix.size())); });
  return names;
}

// Loads an entry. An existing entry that is not trusted or not readable is deleted: otherwise each call would find it
// again.
std::optional<std::vector<char>> DiskCache::load_file(const FileDescriptor& folder, const std::string& name) {
  const FileDescriptor file = open_entry(folder, name);
  if (!file && errno != ELOOP) return {};  // ELOOP: the entry is a link
  struct stat status;
  std::optional<std::vector<char>> payload;
  const auto has_its_size = [&] {  // before memory is allocated: a sparse file may claim any size
    return status.st_size <= largest_entry &&
           entry_size(beginning_of(file)) == static_cast<std::uint64_t>(status.st_size);
  };
  if (file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && only_user_writes(status) &&
      has_its_size())
    if (const auto bytes = read_all(file.get(), static_cast<std::size_t>(status.st_size)))
      payload = decode_entry(*bytes, name);
  if (payload)
    ::futimens(file.get(), nullptr);
  else
    ::unlinkat(folder.get(), name.c_str(), 0);
  return payload;
}

void DiskCache::store(const DiskKey& key, std::string_view stem, std::span<const char> payload) {
  const std::string name = file_name(key, stem);
  const std::string bytes = encode_entry(name, payload);
  if (bytes.size() > config_.limit_bytes) return;
  const FileDescriptor folder = open_folder(Create::yes);
  if (!folder) return;

  // The entry is written under a temporary name and then renamed, so that a reader sees the complete entry or none.
  // Processes of two containers may share a folder and have equal pids, hence O_EXCL and several attempts.
  std::string temporary;
  FileDescriptor file;
  for (int tries = 0; !file && tries < 100; ++tries) {
    temporary = fmt::format("{}{}_{}", temporary_prefix, ::getpid(), temporary_++);
    file = FileDescriptor(::openat(folder.get(), temporary.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!file && errno != EEXIST) break;
  }
  if (!file) return warn(fmt::format("cannot be written: {}", last_error()));

  const bool written = write_all(file.get(), bytes) && file.close() &&
                       ::renameat(folder.get(), temporary.c_str(), folder.get(), name.c_str()) == 0;
  if (!written) {
    warn(fmt::format("cannot be written: {}", last_error()));
    ::unlinkat(folder.get(), temporary.c_str(), 0);
    return;
  }
  evict(folder);
}

void DiskCache::remove(const DiskKey& key, std::string_view stem) {
  if (const FileDescriptor folder = open_folder(Create::no)) ::unlinkat(folder.get(), file_name(key, stem).c_str(), 0);
}

void DiskCache::evict(const FileDescriptor& folder) {
  struct Entry {
    std::string name;
    std::uint64_t bytes;
    timespec used;
  };
  std::vector<Entry> entries;
  std::uint64_t total = 0;
  for (const std::string& name : list_folder(folder)) {
    struct stat status;
    if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(status.st_mode)) continue;
    if (is_temporary_name(name) && status.st_mtime + temporary_lifetime < std::time(nullptr))
      ::unlinkat(folder.get(), name.c_str(), 0);
    if (!is_entry_name(name)) continue;
    entries.push_back({name, static_cast<std::uint64_t>(status.st_size), status.st_mtim});
    total += entries.back().bytes;
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.used.tv_sec, entry.used.tv_nsec); });
  for (const Entry& oldest : entries) {
    if (total <= config_.limit_bytes) return;
    const FileDescriptor file = open_entry(folder, oldest.name);
    const bool is_ours = file && is_entry(beginning_of(file));
    if (!is_ours || ::unlinkat(folder.get(), oldest.name.c_str(), 0) == 0) total -= oldest.bytes;
  }
}

}  // namespace spikeforge::jit
