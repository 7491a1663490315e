#include <spikeforge/nir/replacement_file.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spikeforge::nir {
namespace {

[[noreturn]] void fail_with_errno(const char* what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

mode_t mode_of_new_files() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

ReplacementFile::ReplacementFile(const std::filesystem::path& target) : target_(target) {
  std::error_code error;
  if (std::filesystem::is_symlink(target_, error)) target_ = std::filesystem::weakly_canonical(target_, error);
  struct stat old;
  const bool is_there = ::stat(target_.c_str(), &old) == 0;
  if (is_there && !S_ISREG(old.st_mode)) throw std::runtime_error("is not a regular file and is not replaced");
  std::string name = target_.string() + ".XXXXXX";
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
