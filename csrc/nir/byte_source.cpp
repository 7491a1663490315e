#include "csrc/nir/byte_source.h"
#include "csrc/nir/refuse.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spikeforge::nir {

ByteSource::ByteSource(int file, std::uint64_t size, std::string fallback_path)
    : file_(file), size_(size), path_(fmt::format("/proc/self/fd/{}", file)) {
  if (::access(path_.c_str(), R_OK) != 0) path_ = std::move(fallback_path);
}

ByteSource::ByteSource(ByteSource&& other) noexcept
    : file_(std::exchange(other.file_, -1)), bytes_(other.bytes_), size_(other.size_), path_(std::move(other.path_)) {}

ByteSource::~ByteSource() {
  if (file_ >= 0) ::close(file_);
}

ByteSource ByteSource::open(const std::string& path) {
  // O_NONBLOCK prevents waiting for the writer of a pipe, which raises an error below.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail_with_errno("cannot be opened");
  struct stat status {};
  const bool is_known = ::fstat(file, &status) == 0;
  if (!is_known || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw std::runtime_error(is_known ? "is not a regular file" : "cannot be read");
  }
  return {file, static_cast<std::uint64_t>(status.st_size), path};
}

bool ByteSource::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > size_ || into.size() > size_ - offset) return false;
  if (file_ < 0) {
    std::ranges::copy(bytes_.subspan(offset, into.size()), into.begin());
    return true;
  }
  while (!into.empty()) {
    const ssize_t got = ::pread(file_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;  // the file has become shorter
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

}  // namespace spikeforge::nir
