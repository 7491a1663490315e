#include "csrc/nir/replacement_file.h"
#include "csrc/nir/refuse.h"

#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spikeforge::nir {
namespace {

// Returns the target of a symbolic link, which need not exist. Does not use std::filesystem, because torch exports an
// older copy of its functions.
std::string behind_links(std::string path) {
  constexpr int most_links = 40;  // the limit of Linux
  for (int i = 0; i < most_links; ++i) {
    std::array<char, PATH_MAX> link;
    const ssize_t length = ::readlink(path.c_str(), link.data(), link.size());
    if (length <= 0) break;
    const std::string to(link.data(), static_cast<std::size_t>(length));
    path = to[0] == '/' ? to : path.substr(0, path.rfind('/') + 1) + to;
  }
  return path;
}

mode_t mode_of_new_files() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

ReplacementFile::ReplacementFile(const std::string& target) : target_(behind_links(target)) {
  struct stat old;
  const bool is_there = ::stat(target_.c_str(), &old) == 0;
  if (is_there && !S_ISREG(old.st_mode)) throw std::runtime_error("is not a regular file and is not replaced");
  std::string name = target_ + ".XXXXXX";
  const int file = ::mkstemp(name.data());
  if (file < 0) fail_with_errno("cannot be written");
  path_ = name;
  ::fchmod(file, is_there ? old.st_mode & 07777 : mode_of_new_files());
  ::close(file);
}

ReplacementFile::~ReplacementFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void ReplacementFile::replace() {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_with_errno("cannot be written");
  const bool is_on_disk = ::fsync(file) == 0;
  ::close(file);
  if (!is_on_disk) fail_with_errno("cannot be written");
  if (std::rename(path_.c_str(), target_.c_str()) != 0) fail_with_errno("cannot be replaced");
  path_.clear();
}

}  // namespace spikeforge::nir
