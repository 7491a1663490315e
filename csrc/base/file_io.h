// File descriptors, and whole files by them, where a signal interrupts nothing.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spikeforge {

// A file descriptor that is closed by its destructor; negative if the file could not be opened.
class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

  // Closes the file. Returns false if the system reports that an earlier write failed.
  bool close() { return number_ < 0 || ::close(release()) == 0; }

 private:
  int number_;
};

// A file that is open for reading, and its size; or the error. Only plain files are opened: opening a pipe would wait
// for its writer.
struct PlainFile {
  FileDescriptor descriptor;
  std::uint64_t size = 0;
  std::string error = {};
};
inline PlainFile open_plain_file(const std::string& path) {
  PlainFile file{.descriptor = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC))};
  struct stat status {};
  if (!file.descriptor || ::fstat(file.descriptor.get(), &status) != 0)
    return {.descriptor = FileDescriptor(), .error = std::strerror(errno)};
  if (!S_ISREG(status.st_mode))
    return {.descriptor = FileDescriptor(),
            .error = S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a regular file"};
  file.size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

// Writes all bytes. Returns false if a write failed, with the reason in errno.
inline bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Reads the next `size` bytes. Returns false if there are fewer.
inline bool read_into(int file, char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::read(file, bytes, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}
inline std::optional<std::string> read_all(int file, std::size_t size) {
  std::string bytes(size, '\0');
  if (!read_into(file, bytes.data(), size)) return {};
  return bytes;
}

}  // namespace spikeforge
